// Vectors of 256 bits, by the names of AVX2's intrinsics. On ARM they consist of NEON's vectors (neon.h).
#pragma once

#include "kernels/kernel.h"

#ifdef EAGLE3_HAS_KERNELS

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

// The library runs on every x86-64, so each function names the instruction set that it needs.
#define AVX2 __attribute__((target("avx2,fma,f16c")))
#define AVX2_INLINE __attribute__((target("avx2,fma,f16c"), always_inline)) inline
#else
#include "kernels/neon.h"

#define AVX2
#define AVX2_INLINE NEON_INLINE
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace eagle3::kernels::avx2 {

inline bool is_supported() {
#if defined(__x86_64__)
    static const bool has_f16c = [] { // which Clang 16's __builtin_cpu_supports does not know
        unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
        return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & 1U << 29);
    }();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c;
#else
    return true; // NEON is part of the architecture
#endif
}

// Reads a value at any address, since blocks are not aligned.
template <class T>
inline T read(const void * p) {
    T value;
    std::memcpy(&value, p, sizeof(value));
    return value;
}

AVX2_INLINE __m128i load128(const void * p) {
    return _mm_loadu_si128(static_cast<const __m128i *>(p));
}

AVX2_INLINE __m128i load64(const void * p) {
    return _mm_loadl_epi64(static_cast<const __m128i *>(p));
}

AVX2_INLINE __m256i load256(const void * p) {
    return _mm256_loadu_si256(static_cast<const __m256i *>(p));
}

// The sum of the lanes, always in the same order.
AVX2_INLINE float sum(__m256 v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s        = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

} // namespace eagle3::kernels::avx2
#endif
