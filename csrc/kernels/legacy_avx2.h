#pragma once

#include "kernels/kernel.h"

namespace eagle3::kernels {

#if defined(__x86_64__)
extern const kernel q4_0x8_avx2, iq4_nlx8_avx2, mxfp4x8_avx2;
extern const kernel q4_0_avx2, q4_1_avx2, q5_0_avx2, q5_1_avx2, q8_0_avx2, iq4_nl_avx2, iq4_xs_avx2, mxfp4_avx2;
extern const kernel f16_avx2, bf16_avx2, f32_avx2;
#endif

} // namespace eagle3::kernels
