#pragma once

#include "llama.h"

#include <string>
#include <vector>

namespace eagle3 {

// llama.cpp's grammar sampler, but that it neither hangs nor ends the process, whatever the grammar is. Its methods
// throw eagle3::error where llama.cpp would.
//
// trigger_patterns: regular expressions, and trigger_tokens: what a lazy grammar waits for.
// n_best: what is applied after it looks at the n_best greatest logits alone, so that it may leave no more; 0: at all.
//
// throws std::invalid_argument
llama_sampler * grammar_sampler_init(const llama_vocab * vocab, const std::string & grammar, const std::string & root,
                                     bool lazy, const std::vector<std::string> & trigger_patterns,
                                     const std::vector<llama_token> & trigger_tokens, size_t n_best);

// of such a sampler: whether it is lazy and was not triggered, so that it allows everything
bool grammar_is_waiting(const llama_sampler * smpl);

} // namespace eagle3
