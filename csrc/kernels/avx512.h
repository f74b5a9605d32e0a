#pragma once

#include "kernels/avx2.h"

#if defined(__x86_64__)

// Each function names the instruction set that it needs, see avx2.h.
#define EAGLE3_AVX512 "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni"
#define AVX512 __attribute__((target(EAGLE3_AVX512)))
#define AVX512_INLINE __attribute__((target(EAGLE3_AVX512), always_inline)) inline

// Products of floats need no VNNI.
#define EAGLE3_AVX512_FLOATS "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl"
#define AVX512_FLOATS __attribute__((target(EAGLE3_AVX512_FLOATS)))
#define AVX512_FLOATS_INLINE __attribute__((target(EAGLE3_AVX512_FLOATS), always_inline)) inline

namespace eagle3::kernels::avx512 {

AVX512_INLINE __m512i load512(const void * p) {
    return _mm512_loadu_si512(p);
}

AVX512_INLINE __m512i join(__m256i low, __m256i high) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

AVX512_INLINE __m512 join(__m256 low, __m256 high) {
    return _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
}

} // namespace eagle3::kernels::avx512
#endif
