#pragma once

#include "kernels/libggml_cpu.h"

namespace eagle3::kernels {

// What attention computes, whose result must not depend on how many rows there are, nor on the cells of the cache that
// hold what a row sees, which differ where drafts were rejected and where other sequences are.

constexpr int64_t N_ATTENTION_ROWS_MAX = 64; // passes of more are prompts

// products of rows and what is no weight: K times Q, values times probabilities
op_traits * attention_product(const ggml_tensor * op); // null: left to ggml

// probabilities
op_traits * attention_soft_max(const ggml_tensor * op); // null: left to ggml

// flash attention: all of it in one operation
op_traits * attention_flash(const ggml_tensor * op); // null: left to ggml

// what recurrent layers have in the place of attention: the gated delta rule (delta_net.cpp)
op_traits * gated_delta_net(const ggml_tensor * op); // null: left to ggml

} // namespace eagle3::kernels
