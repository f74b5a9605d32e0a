#pragma once

#include "grammar/pieces.h"

#include "llama.h"

#include <memory>
#include <string>
#include <vector>

namespace eagle3 {

struct grammar_place;

// llama.cpp's grammar sampler, but whatever the grammar is, it neither hangs nor ends the process: its methods throw
// eagle3::error.
//
// tokens: of the model's vocabulary.
// trigger_patterns (regular expressions) and trigger_tokens: what a lazy grammar waits for.
// n_best: the next sampler reads only the n_best greatest logits, so this one need not leave more; 0: it reads all.
//
// Throws std::invalid_argument.
llama_sampler * grammar_sampler_init(std::shared_ptr<const token_tree> tokens, const std::string & grammar,
                                     const std::string & root, bool lazy,
                                     const std::vector<std::string> & trigger_patterns,
                                     const std::vector<llama_token> & trigger_tokens, size_t n_best);

// Is such a sampler lazy and was not triggered, so that it allows everything?
bool grammar_is_waiting(const llama_sampler * smpl);

// Where the text of such a sampler is in its grammar: see automaton.h.
grammar_place grammar_place_of(const llama_sampler * smpl);

} // namespace eagle3
