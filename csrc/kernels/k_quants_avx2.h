#pragma once

#include "kernels/kernel.h"

namespace eagle3::kernels {

#if defined(__x86_64__)
// of each format, by instruction sets
extern const std::vector<kernel> q4_Kx8_kernels; // block_q4_Kx8, ggml/src/ggml-cpu/repack.h
extern const std::vector<kernel> q2_K_kernels, q3_K_kernels, q4_K_kernels, q5_K_kernels, q6_K_kernels;
#endif

} // namespace eagle3::kernels
