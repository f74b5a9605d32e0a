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

inline bool has_floats() {
    return avx2::is_supported() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

AVX512_INLINE __m512i load512(const void * p) {
    return _mm512_loadu_si512(p);
}

AVX512_INLINE __m512i join(__m256i low, __m256i high) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

AVX512_INLINE __m512 join(__m256 low, __m256 high) {
    return _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
}

AVX512_INLINE __m512i low_bits(__m512i x, int shift, int mask) {
    return _mm512_and_si512(_mm512_srli_epi16(x, shift), _mm512_set1_epi8(static_cast<char>(mask)));
}

// The half floats in the low 16 bits of each channel.
AVX512_INLINE __m512 floats(__m512i x) {
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(x));
}

// Transposes the dwords in each 128 bits.
AVX512_INLINE void transpose_dwords(__m512i & x, __m512i & y, __m512i & z, __m512i & w) {
    const __m512i a = _mm512_unpacklo_epi32(x, y), b = _mm512_unpacklo_epi32(z, w);
    const __m512i c = _mm512_unpackhi_epi32(x, y), d = _mm512_unpackhi_epi32(z, w);

    x = _mm512_unpacklo_epi64(a, b);
    y = _mm512_unpackhi_epi64(a, b);
    z = _mm512_unpacklo_epi64(c, d);
    w = _mm512_unpackhi_epi64(c, d);
}

// Sixteen channels that were made of two octets lie in lanes of 128 bits, of which each has two channels of the first
// octet and two of the second. This returns them in order.
AVX512_INLINE __m512 in_order(__m512 v) {
    return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15), v);
}

} // namespace eagle3::kernels::avx512
#endif
