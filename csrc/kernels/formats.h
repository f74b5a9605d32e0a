#pragma once

#include "kernels/kernel.h"

namespace eagle3::kernels {

#ifdef EAGLE3_HAS_KERNELS
// Each format's kernels, one for each instruction set. "x8": weights in which ggml has repacked eight channels
// (ggml/src/ggml-cpu/repack.h).
extern const std::vector<kernel> q4_0x8_kernels, iq4_nlx8_kernels, mxfp4x8_kernels, q2_Kx8_kernels, q4_Kx8_kernels;
extern const std::vector<kernel> q4_0_kernels, q4_1_kernels, q5_0_kernels, q5_1_kernels, q8_0_kernels;
extern const std::vector<kernel> q2_K_kernels, q3_K_kernels, q4_K_kernels, q5_K_kernels, q6_K_kernels;
extern const std::vector<kernel> iq4_nl_kernels, iq4_xs_kernels, mxfp4_kernels, nvfp4_kernels;
extern const std::vector<kernel> iq1_s_kernels, iq1_m_kernels, iq2_xxs_kernels, iq2_xs_kernels, iq2_s_kernels;
extern const std::vector<kernel> iq3_xxs_kernels, iq3_s_kernels;
extern const std::vector<kernel> q1_0_kernels, q2_0_kernels, tq1_0_kernels, tq2_0_kernels;
extern const std::vector<kernel> f16_kernels, bf16_kernels, f32_kernels;

#if defined(__aarch64__)
// Repacked by ggml on ARM. The name has the number of channels, and the bytes of each that lie together.
extern const std::vector<kernel> q4_0_4x4_kernels, q4_0_4x8_kernels, q8_0_4x4_kernels, q8_0_4x8_kernels;
extern const std::vector<kernel> q4_K_8x4_kernels, q5_K_8x4_kernels, q5_K_8x8_kernels, q6_K_8x4_kernels,
    q6_K_8x8_kernels;
extern const std::vector<kernel> iq4_nl_4x4_kernels, mxfp4_4x4_kernels;
#endif
#endif

} // namespace eagle3::kernels
