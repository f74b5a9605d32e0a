#pragma once

#include "draft/foresight.h"
#include "gumbel.h"

#include "llama.h"

#include <cstdint>
#include <vector>

namespace eagle3 {

// The n_top most probable tokens of a row of n_vocab logits, best first, with their probabilities (softmax over the
// whole row). Empty if the row has no number in it, or fewer numbers than n_top.
std::vector<draft_candidate> best_of_row(const float * logits, int32_t n_vocab, int32_t n_top);

// The n_top tokens that are expected to be drawn: with noise, which may be null, in the order that it gives them.
// n_known: tokens of the row whose logits are numbers. n_ahead: drafted tokens before them
std::vector<draft_candidate> expected_of_row(const float * logits, int32_t n_vocab, int32_t n_known, int32_t n_top,
                                             const gumbel_noise * noise, int32_t n_ahead);

} // namespace eagle3
