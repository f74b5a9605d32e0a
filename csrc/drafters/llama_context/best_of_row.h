#pragma once

#include "drafters/eagle3/runner.h"

#include "llama.h"

#include <cstdint>
#include <vector>

namespace eagle3 {

// The n_top most probable tokens of a row of n_vocab logits, best first, with their probabilities (softmax over the
// whole row). Empty if fewer than n_top of the logits are numbers.
std::vector<draft_candidate> best_of_row(const float * logits, int32_t n_vocab, int32_t n_top);

} // namespace eagle3
