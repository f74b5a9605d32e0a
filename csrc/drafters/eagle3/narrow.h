#pragma once

#include "ggml.h"

#include <cstdint>
#include <string>
#include <vector>

namespace eagle3 {

// Can convert_matrix() write this type? F16 it cannot, as that does not hold every weight.
bool can_convert_to(ggml_type type);

// The names of these types, for messages.
std::string convertible_types();

// `type` if it is smaller than the matrix's type and its blocks fit the rows, else the matrix's type.
ggml_type narrower(const ggml_tensor * matrix, ggml_type type);

// Converts the matrix at `data`, described by `matrix`, to another type, by several threads.
std::vector<uint8_t> convert_matrix(const ggml_tensor * matrix, const uint8_t * data, ggml_type type,
                                    int32_t n_threads);

} // namespace eagle3
