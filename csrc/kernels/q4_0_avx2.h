#pragma once

#include "kernels/kernel.h"

namespace eagle3::kernels {

#if defined(__x86_64__)
extern const kernel q4_0x8_avx2;
#endif

} // namespace eagle3::kernels
