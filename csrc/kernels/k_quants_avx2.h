#pragma once

#include "kernels/kernel.h"

namespace eagle3::kernels {

#if defined(__x86_64__)
extern const kernel q4_Kx8_avx2; // block_q4_Kx8, ggml/src/ggml-cpu/repack.h
extern const kernel q2_K_avx2;
extern const kernel q3_K_avx2;
extern const kernel q4_K_avx2;
extern const kernel q5_K_avx2;
extern const kernel q6_K_avx2;
#endif

} // namespace eagle3::kernels
