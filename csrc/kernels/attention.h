#pragma once

#include "kernels/kernel.h"
#include "kernels/libggml_cpu.h"

namespace eagle3::kernels {

// The operations of attention. A row's result depends neither on how many rows a pass has nor on which cells of the
// cache hold the keys and values that the row sees: rejected drafts and other sequences leave these anywhere.

constexpr int64_t N_ATTENTION_ROWS_MAX = 64; // a pass of more rows evaluates a prompt

#ifdef EAGLE3_HAS_KERNELS

// Each function returns null for an operation that is left to ggml.

// Products of rows with a matrix that is not a weight: K times Q, values times probabilities.
op_traits * attention_product(const ggml_tensor * op);

// The probabilities of the cells.
op_traits * attention_soft_max(const ggml_tensor * op);

// Flash attention: all of attention in one operation.
op_traits * attention_flash(const ggml_tensor * op);

// The gated delta rule, which recurrent layers have in the place of attention (delta_net.cpp).
op_traits * gated_delta_net(const ggml_tensor * op);

#else

inline op_traits * attention_product(const ggml_tensor *) {
    return nullptr;
}

inline op_traits * attention_soft_max(const ggml_tensor *) {
    return nullptr;
}

inline op_traits * attention_flash(const ggml_tensor *) {
    return nullptr;
}

inline op_traits * gated_delta_net(const ggml_tensor *) {
    return nullptr;
}

#endif

} // namespace eagle3::kernels
