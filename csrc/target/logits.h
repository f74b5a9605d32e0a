#pragma once

#include "llama.h"

#include <cstdint>
#include <vector>

namespace eagle3 {

// the first of the greatest of n logits; -1 if all are NaN
llama_token argmax(const float * logits, int32_t n);

// the k greatest of n logits, best first, the lower id first among equals. False if they are not k numbers
bool best_candidates(const float * logits, int32_t n, int32_t k, std::vector<llama_token_data> & res);

// whether one of n logits is no number: what sorts them could leave its range
bool has_nan(const float * logits, int32_t n);

} // namespace eagle3
