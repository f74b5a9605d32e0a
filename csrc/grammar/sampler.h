#pragma once

#include "llama.h"

#include <functional>
#include <string>
#include <vector>

struct llama_grammar;

namespace eagle3 {

// llama.cpp's grammar sampler, but whatever the grammar is, it neither hangs nor ends the process: its methods throw
// eagle3::error.
//
// trigger_patterns (regular expressions) and trigger_tokens: what a lazy grammar waits for.
// n_best: the next sampler reads only the n_best greatest logits, so this one need not leave more; 0: it reads all.
//
// Throws std::invalid_argument.
llama_sampler * grammar_sampler_init(const llama_vocab * vocab, const std::string & grammar, const std::string & root,
                                     bool lazy, const std::vector<std::string> & trigger_patterns,
                                     const std::vector<llama_token> & trigger_tokens, size_t n_best);

// Is such a sampler lazy and was not triggered, so that it allows everything?
bool grammar_is_waiting(const llama_sampler * smpl);

// Calls `work` with the grammar of such a sampler in its present state. What it changes is forgotten.
void with_grammar(const llama_sampler * smpl, const std::function<void(llama_grammar &)> & work);

} // namespace eagle3
