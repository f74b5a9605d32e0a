#pragma once

#include "llama.h"

#include <cstdint>
#include <vector>

namespace eagle3 {

// The first of the greatest of n logits; -1 if all are NaN.
llama_token argmax(const float * logits, int32_t n);

// The k greatest of n logits, best first, and the lower id first among equals. False if fewer than k are numbers.
bool best_candidates(const float * logits, int32_t n, int32_t k, std::vector<llama_token_data> & res);

// Is one of n logits NaN? Code that sorts them could leave its range.
bool has_nan(const float * logits, int32_t n);

} // namespace eagle3
