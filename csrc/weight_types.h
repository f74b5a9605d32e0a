#pragma once

#include "ggml.h"

namespace eagle3 {

inline bool is_float_type(ggml_type type) {
    return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16;
}

// Can ggml multiply a matrix of this type, or read its rows? Q8_1 and Q8_K are for activations only.
inline bool is_matrix_type(ggml_type type) {
    return is_float_type(type) || (ggml_is_quantized(type) && type != GGML_TYPE_Q8_1 && type != GGML_TYPE_Q8_K);
}

} // namespace eagle3
