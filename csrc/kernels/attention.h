#pragma once

#include "kernels/kernel.h"
#include "kernels/libggml_cpu.h"

namespace eagle3::kernels {

// What attention computes, whose result must not depend on how many rows there are, nor on the cells of the cache that
// hold what a row sees, which differ where drafts were rejected and where other sequences are.

constexpr int64_t N_ATTENTION_ROWS_MAX = 64; // passes of more are prompts

#ifdef EAGLE3_HAS_KERNELS

// Each is null for what is left to ggml.

// products of rows and what is no weight: K times Q, values times probabilities
op_traits * attention_product(const ggml_tensor * op);

// probabilities
op_traits * attention_soft_max(const ggml_tensor * op);

// flash attention: all of it in one operation
op_traits * attention_flash(const ggml_tensor * op);

// what recurrent layers have in the place of attention: the gated delta rule (delta_net.cpp)
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
