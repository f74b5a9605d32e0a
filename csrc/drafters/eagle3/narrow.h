#pragma once

#include "ggml.h"

#include <cstdint>
#include <string>
#include <vector>

namespace eagle3 {

// Whether convert_matrix() can write this type. F16 is none of them: it does not hold every weight.
bool can_convert_to(ggml_type type);

// names of those types, for messages
std::string convertible_types();

// `type` if it is smaller than the matrix's own type and its blocks fit the rows, else the matrix's own
ggml_type narrower(const ggml_tensor * matrix, ggml_type type);

// the matrix at `data`, described by `matrix`, in another type; rows are shared out to threads
std::vector<uint8_t> convert_matrix(const ggml_tensor * matrix, const uint8_t * data, ggml_type type,
                                    int32_t n_threads);

} // namespace eagle3
