// Those of AVX2's intrinsics that kernels use, by NEON: a vector of 256 bits is two of 128. Each gives the same bits as
// on x86, so that one source of a kernel computes the same on both. Operations that ARM does in another way are members
// of the instruction sets (instruction_sets.h).
//
// Compiled with -ffp-contract=off, so that a product and a sum are rounded separately unless a kernel asks for fmadd.
#pragma once

#if defined(__aarch64__)
#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#define NEON_INLINE __attribute__((always_inline)) inline

namespace eagle3 {

using __m128  = float32x4_t;
using __m128i = int8x16_t;
using __m64   = int8x8_t;

struct __m256i {
    int8x16_t low, high;
};

struct __m256 {
    float32x4_t low, high;
};

struct __m256d {
    float64x2_t low, high;
};

// Bytes viewed as other lanes.

NEON_INLINE int16x8_t words(__m128i a) {
    return vreinterpretq_s16_s8(a);
}

NEON_INLINE int32x4_t dwords(__m128i a) {
    return vreinterpretq_s32_s8(a);
}

NEON_INLINE uint32x4_t udwords(__m128i a) {
    return vreinterpretq_u32_s8(a);
}

NEON_INLINE int64x2_t qwords(__m128i a) {
    return vreinterpretq_s64_s8(a);
}

NEON_INLINE __m128i bytes(int16x8_t a) {
    return vreinterpretq_s8_s16(a);
}

NEON_INLINE __m128i bytes(int32x4_t a) {
    return vreinterpretq_s8_s32(a);
}

NEON_INLINE __m128i bytes(int64x2_t a) {
    return vreinterpretq_s8_s64(a);
}

NEON_INLINE __m128i bytes(uint8x16_t a) {
    return vreinterpretq_s8_u8(a);
}

NEON_INLINE __m128i bytes(uint16x8_t a) {
    return vreinterpretq_s8_u16(a);
}

NEON_INLINE __m128i bytes(uint32x4_t a) {
    return vreinterpretq_s8_u32(a);
}

NEON_INLINE uint32x4_t bits(float32x4_t a) {
    return vreinterpretq_u32_f32(a);
}

NEON_INLINE float32x4_t floats(uint32x4_t a) {
    return vreinterpretq_f32_u32(a);
}

// Products of uint8 and int8, and the saturating sums of pairs of them.

NEON_INLINE int16x8_t multiply_low(__m128i a, __m128i b) {
    return vmulq_s16(words(bytes(vmovl_u8(vget_low_u8(vreinterpretq_u8_s8(a))))), vmovl_s8(vget_low_s8(b)));
}

NEON_INLINE int16x8_t multiply_high(__m128i a, __m128i b) {
    return vmulq_s16(words(bytes(vmovl_high_u8(vreinterpretq_u8_s8(a)))), vmovl_high_s8(b));
}

NEON_INLINE __m128i add_pairs(int16x8_t low, int16x8_t high) {
    return bytes(vqaddq_s16(vuzp1q_s16(low, high), vuzp2q_s16(low, high)));
}

// Operations that work on each half.

#define NEON_OF_ONE(name, expression)                                                                                  \
    NEON_INLINE __m128i _mm_##name(__m128i a) {                                                                        \
        return expression;                                                                                             \
    }                                                                                                                  \
    NEON_INLINE __m256i _mm256_##name(__m256i a) {                                                                     \
        return { _mm_##name(a.low), _mm_##name(a.high) };                                                              \
    }
#define NEON_OF_TWO(name, expression)                                                                                  \
    NEON_INLINE __m128i _mm_##name(__m128i a, __m128i b) {                                                             \
        return expression;                                                                                             \
    }                                                                                                                  \
    NEON_INLINE __m256i _mm256_##name(__m256i a, __m256i b) {                                                          \
        return { _mm_##name(a.low, b.low), _mm_##name(a.high, b.high) };                                               \
    }
#define NEON_OF_FLOATS(name, expression)                                                                               \
    NEON_INLINE __m128 _mm_##name(__m128 a, __m128 b) {                                                                \
        return expression;                                                                                             \
    }                                                                                                                  \
    NEON_INLINE __m256 _mm256_##name(__m256 a, __m256 b) {                                                             \
        return { _mm_##name(a.low, b.low), _mm_##name(a.high, b.high) };                                               \
    }
#define NEON_SHIFT(name, expression)                                                                                   \
    NEON_INLINE __m128i _mm_##name(__m128i a, int n) {                                                                 \
        return expression;                                                                                             \
    }                                                                                                                  \
    NEON_INLINE __m256i _mm256_##name(__m256i a, int n) {                                                              \
        return { _mm_##name(a.low, n), _mm_##name(a.high, n) };                                                        \
    }

NEON_OF_TWO(add_epi8, vaddq_s8(a, b))
NEON_OF_TWO(add_epi16, bytes(vaddq_s16(words(a), words(b))))
NEON_OF_TWO(add_epi32, bytes(vaddq_s32(dwords(a), dwords(b))))
NEON_OF_TWO(sub_epi8, vsubq_s8(a, b))
NEON_OF_TWO(sub_epi16, bytes(vsubq_s16(words(a), words(b))))
NEON_OF_TWO(sub_epi32, bytes(vsubq_s32(dwords(a), dwords(b))))
NEON_OF_TWO(and_si, vandq_s8(a, b))
NEON_OF_TWO(or_si, vorrq_s8(a, b))
NEON_OF_TWO(xor_si, veorq_s8(a, b))
NEON_OF_TWO(max_epi16, bytes(vmaxq_s16(words(a), words(b))))
NEON_OF_TWO(min_epi16, bytes(vminq_s16(words(a), words(b))))
NEON_OF_TWO(max_epu8, bytes(vmaxq_u8(vreinterpretq_u8_s8(a), vreinterpretq_u8_s8(b))))
NEON_OF_TWO(cmpeq_epi8, bytes(vceqq_s8(a, b)))
NEON_OF_TWO(cmpeq_epi32, bytes(vceqq_s32(dwords(a), dwords(b))))
NEON_OF_TWO(cmpgt_epi32, bytes(vcgtq_s32(dwords(a), dwords(b))))
NEON_OF_TWO(packs_epi16, vcombine_s8(vqmovn_s16(words(a)), vqmovn_s16(words(b))))
NEON_OF_TWO(packs_epi32, bytes(vcombine_s16(vqmovn_s32(dwords(a)), vqmovn_s32(dwords(b)))))
NEON_OF_TWO(packus_epi32, bytes(vcombine_u16(vqmovun_s32(dwords(a)), vqmovun_s32(dwords(b)))))
NEON_OF_TWO(hadd_epi32, bytes(vpaddq_s32(dwords(a), dwords(b))))
NEON_OF_TWO(unpacklo_epi16, bytes(vzip1q_s16(words(a), words(b))))
NEON_OF_TWO(unpacklo_epi32, bytes(vzip1q_s32(dwords(a), dwords(b))))
NEON_OF_TWO(unpackhi_epi32, bytes(vzip2q_s32(dwords(a), dwords(b))))
NEON_OF_TWO(unpacklo_epi64, bytes(vzip1q_s64(qwords(a), qwords(b))))
NEON_OF_TWO(unpackhi_epi64, bytes(vzip2q_s64(qwords(a), qwords(b))))
// An index whose highest bit is set gives zero; of others the low four bits count.
NEON_OF_TWO(shuffle_epi8, vqtbl1q_s8(a, vandq_u8(vreinterpretq_u8_s8(b), vdupq_n_u8(0x8f))))
NEON_OF_TWO(madd_epi16, bytes(vpaddq_s32(vmull_s16(vget_low_s16(words(a)), vget_low_s16(words(b))),
                                         vmull_high_s16(words(a), words(b)))))
NEON_OF_TWO(maddubs_epi16, add_pairs(multiply_low(a, b), multiply_high(a, b)))
NEON_OF_TWO(sllv_epi32, bytes(vshlq_u32(udwords(a), vminq_s32(dwords(b), vdupq_n_s32(32)))))
NEON_SHIFT(slli_epi16, bytes(words(a) << n))
NEON_SHIFT(slli_epi32, bytes(dwords(a) << n))
NEON_SHIFT(srai_epi32, bytes(dwords(a) >> n))
NEON_SHIFT(srli_epi16, bytes(vreinterpretq_u16_s8(a) >> n))
NEON_SHIFT(srli_epi32, bytes(udwords(a) >> n))

NEON_INLINE __m256i _mm256_and_si256(__m256i a, __m256i b) {
    return _mm256_and_si(a, b);
}

NEON_INLINE __m256i _mm256_or_si256(__m256i a, __m256i b) {
    return _mm256_or_si(a, b);
}

NEON_INLINE __m256i _mm256_xor_si256(__m256i a, __m256i b) {
    return _mm256_xor_si(a, b);
}

NEON_INLINE __m128i _mm_and_si128(__m128i a, __m128i b) {
    return _mm_and_si(a, b);
}

NEON_INLINE __m128i _mm_or_si128(__m128i a, __m128i b) {
    return _mm_or_si(a, b);
}

NEON_OF_FLOATS(add_ps, vaddq_f32(a, b))
NEON_OF_FLOATS(sub_ps, vsubq_f32(a, b))
NEON_OF_FLOATS(mul_ps, vmulq_f32(a, b))
NEON_OF_FLOATS(div_ps, vdivq_f32(a, b))
NEON_OF_FLOATS(hadd_ps, vpaddq_f32(a, b))
NEON_OF_FLOATS(max_ps, vbslq_f32(vcgtq_f32(a, b), a, b)) // b if one is NaN
NEON_OF_FLOATS(and_ps, floats(vandq_u32(bits(a), bits(b))))
NEON_OF_FLOATS(andnot_ps, floats(vbicq_u32(bits(b), bits(a))))
NEON_OF_FLOATS(or_ps, floats(vorrq_u32(bits(a), bits(b))))
NEON_OF_FLOATS(xor_ps, floats(veorq_u32(bits(a), bits(b))))

#undef NEON_OF_ONE
#undef NEON_OF_TWO
#undef NEON_OF_FLOATS
#undef NEON_SHIFT

// Constants.

NEON_INLINE __m128i _mm_set1_epi8(char x) {
    return vdupq_n_s8(static_cast<int8_t>(x));
}

NEON_INLINE __m256i of_both(__m128i half) {
    return { half, half };
}

NEON_INLINE __m256i _mm256_set1_epi8(char x) {
    return of_both(_mm_set1_epi8(x));
}

NEON_INLINE __m256i _mm256_set1_epi16(short x) {
    return of_both(bytes(vdupq_n_s16(x)));
}

NEON_INLINE __m256i _mm256_set1_epi32(int x) {
    return of_both(bytes(vdupq_n_s32(x)));
}

NEON_INLINE __m256i _mm256_set1_epi64x(int64_t x) {
    return of_both(bytes(vdupq_n_s64(x)));
}

NEON_INLINE __m256 _mm256_set1_ps(float x) {
    return { vdupq_n_f32(x), vdupq_n_f32(x) };
}

NEON_INLINE __m256d _mm256_set1_pd(double x) {
    return { vdupq_n_f64(x), vdupq_n_f64(x) };
}

NEON_INLINE __m256i _mm256_setzero_si256() {
    return of_both(vdupq_n_s8(0));
}

NEON_INLINE __m256 _mm256_setzero_ps() {
    return _mm256_set1_ps(0.0f);
}

NEON_INLINE __m256d _mm256_setzero_pd() {
    return _mm256_set1_pd(0.0);
}

template <class... Values>
NEON_INLINE __m128i _mm_setr_epi8(Values... x) {
    return __m128i{ static_cast<int8_t>(x)... };
}

template <class... Values>
NEON_INLINE __m128i _mm_setr_epi16(Values... x) {
    return bytes(int16x8_t{ static_cast<int16_t>(x)... });
}

NEON_INLINE __m128i _mm_setr_epi32(int a, int b, int c, int d) {
    return bytes(int32x4_t{ a, b, c, d });
}

template <class... Values>
NEON_INLINE __m256i _mm256_setr_epi8(Values... x) {
    const int8_t v[32] = { static_cast<int8_t>(x)... };
    return { vld1q_s8(v), vld1q_s8(v + 16) };
}

NEON_INLINE __m256i _mm256_setr_epi32(int a, int b, int c, int d, int e, int f, int g, int h) {
    return { _mm_setr_epi32(a, b, c, d), _mm_setr_epi32(e, f, g, h) };
}

NEON_INLINE __m256i _mm256_setr_epi64x(int64_t a, int64_t b, int64_t c, int64_t d) {
    return { bytes(int64x2_t{ a, b }), bytes(int64x2_t{ c, d }) };
}

NEON_INLINE __m256 _mm256_setr_ps(float a, float b, float c, float d, float e, float f, float g, float h) {
    return { float32x4_t{ a, b, c, d }, float32x4_t{ e, f, g, h } };
}

// Loads and stores; addresses need no alignment.

NEON_INLINE __m128i _mm_loadu_si128(const __m128i * p) {
    return vld1q_s8(reinterpret_cast<const int8_t *>(p));
}

NEON_INLINE __m256i _mm256_loadu_si256(const __m256i * p) {
    const auto * x = reinterpret_cast<const int8_t *>(p);
    return { vld1q_s8(x), vld1q_s8(x + 16) };
}

NEON_INLINE __m128i _mm_loadl_epi64(const __m128i * p) {
    return vcombine_s8(vld1_s8(reinterpret_cast<const int8_t *>(p)), vdup_n_s8(0));
}

NEON_INLINE __m128 _mm_loadh_pi(__m128 a, const __m64 * p) {
    return vcombine_f32(vget_low_f32(a), vld1_f32(reinterpret_cast<const float *>(p)));
}

NEON_INLINE __m128 _mm_loadu_ps(const float * p) {
    return vld1q_f32(p);
}

NEON_INLINE __m256 _mm256_loadu_ps(const float * p) {
    return { vld1q_f32(p), vld1q_f32(p + 4) };
}

NEON_INLINE __m256d _mm256_loadu_pd(const double * p) {
    return { vld1q_f64(p), vld1q_f64(p + 2) };
}

NEON_INLINE __m256d _mm256_broadcast_sd(const double * p) {
    return _mm256_set1_pd(*p);
}

NEON_INLINE void _mm_storeu_si128(__m128i * p, __m128i a) {
    vst1q_s8(reinterpret_cast<int8_t *>(p), a);
}

NEON_INLINE void _mm256_storeu_si256(__m256i * p, __m256i a) {
    auto * x = reinterpret_cast<int8_t *>(p);
    vst1q_s8(x, a.low);
    vst1q_s8(x + 16, a.high);
}

NEON_INLINE void _mm_storeu_ps(float * p, __m128 a) {
    vst1q_f32(p, a);
}

NEON_INLINE void _mm256_storeu_ps(float * p, __m256 a) {
    vst1q_f32(p, a.low);
    vst1q_f32(p + 4, a.high);
}

NEON_INLINE void _mm256_store_ps(float * p, __m256 a) {
    _mm256_storeu_ps(p, a);
}

NEON_INLINE void _mm256_storeu_pd(double * p, __m256d a) {
    vst1q_f64(p, a.low);
    vst1q_f64(p + 2, a.high);
}

enum { _MM_HINT_T0 = 3, _MM_HINT_T1 = 2 };

#define _mm_prefetch(p, hint) __builtin_prefetch(p, 0, hint)

// Halves and lanes.

NEON_INLINE __m128i _mm256_castsi256_si128(__m256i a) {
    return a.low;
}

NEON_INLINE __m128 _mm256_castps256_ps128(__m256 a) {
    return a.low;
}

NEON_INLINE __m128i _mm256_extracti128_si256(__m256i a, int half) {
    return half ? a.high : a.low;
}

NEON_INLINE __m128 _mm256_extractf128_ps(__m256 a, int half) {
    return half ? a.high : a.low;
}

NEON_INLINE __m256i _mm256_castsi128_si256(__m128i a) {
    return of_both(a);
}

NEON_INLINE __m256i _mm256_broadcastsi128_si256(__m128i a) {
    return of_both(a);
}

NEON_INLINE __m256i _mm256_inserti128_si256(__m256i a, __m128i b, int half) {
    return half ? __m256i{ a.low, b } : __m256i{ b, a.high };
}

NEON_INLINE int _mm256_extract_epi32(__m256i a, int lane) {
    return lane < 4 ? dwords(a.low)[lane] : dwords(a.high)[lane - 4];
}

NEON_INLINE int _mm_extract_epi32(__m128i a, int lane) {
    return dwords(a)[lane];
}

NEON_INLINE int _mm_cvtsi128_si32(__m128i a) {
    return vgetq_lane_s32(dwords(a), 0);
}

NEON_INLINE float _mm_cvtss_f32(__m128 a) {
    return vgetq_lane_f32(a, 0);
}

NEON_INLINE __m128 _mm_unpacklo_ps(__m128 a, __m128 b) {
    return vzip1q_f32(a, b);
}

NEON_INLINE __m128 _mm_unpackhi_ps(__m128 a, __m128 b) {
    return vzip2q_f32(a, b);
}

NEON_INLINE __m128 _mm_movehl_ps(__m128 a, __m128 b) {
    return vcombine_f32(vget_high_f32(b), vget_high_f32(a));
}

NEON_INLINE __m128 _mm_movelh_ps(__m128 a, __m128 b) {
    return vcombine_f32(vget_low_f32(a), vget_low_f32(b));
}

NEON_INLINE __m128 _mm_movehdup_ps(__m128 a) {
    return vtrn2q_f32(a, a);
}

// Operations on the first lane; the others are not used.

NEON_INLINE __m128 _mm_add_ss(__m128 a, __m128 b) {
    return vaddq_f32(a, b);
}

NEON_INLINE __m128 _mm_max_ss(__m128 a, __m128 b) {
    return _mm_max_ps(a, b);
}

template <int order>
NEON_INLINE __m128 permute(__m128 a, __m128 b) {
    return __m128{ a[order & 3], a[order >> 2 & 3], b[order >> 4 & 3], b[order >> 6 & 3] };
}

template <int order>
NEON_INLINE __m256 permute(__m256 a, __m256 b) {
    return { permute<order>(a.low, b.low), permute<order>(a.high, b.high) };
}

template <int i>
NEON_INLINE double lane64(__m256d a) {
    return i < 2 ? a.low[i & 1] : a.high[i & 1];
}

template <int order>
NEON_INLINE __m256d permute64(__m256d a) {
    return { float64x2_t{ lane64<order & 3>(a), lane64<(order >> 2 & 3)>(a) },
             float64x2_t{ lane64<(order >> 4 & 3)>(a), lane64<(order >> 6 & 3)>(a) } };
}

#define _mm256_shuffle_ps(a, b, order) permute<order>(a, b)
#define _mm256_permute_ps(a, order) permute<order>(a, a)
#define _mm256_permute4x64_pd(a, order) permute64<order>(a)
#define _mm256_permute4x64_epi64(a, order) as_integers(permute64<order>(as_doubles(a)))

// Lane i of the result is lane at[i] of a.
NEON_INLINE __m256i _mm256_permutevar8x32_epi32(__m256i a, __m256i at) {
    const uint8x16x2_t both = { vreinterpretq_u8_s8(a.low), vreinterpretq_u8_s8(a.high) };
    const auto         half = [&](__m128i lanes) {
        const uint32x4_t first = vmulq_n_u32(vandq_u32(udwords(lanes), vdupq_n_u32(7)), 0x04040404);
        return bytes(vqtbl2q_u8(both, vreinterpretq_u8_u32(vaddq_u32(first, vdupq_n_u32(0x03020100)))));
    };
    return { half(at.low), half(at.high) };
}

// The same bits as another type.

NEON_INLINE __m128 _mm_castsi128_ps(__m128i a) {
    return vreinterpretq_f32_s8(a);
}

NEON_INLINE __m128i _mm_castps_si128(__m128 a) {
    return vreinterpretq_s8_f32(a);
}

NEON_INLINE __m256 _mm256_castsi256_ps(__m256i a) {
    return { _mm_castsi128_ps(a.low), _mm_castsi128_ps(a.high) };
}

NEON_INLINE __m256i _mm256_castps_si256(__m256 a) {
    return { _mm_castps_si128(a.low), _mm_castps_si128(a.high) };
}

NEON_INLINE __m256d _mm256_castps_pd(__m256 a) {
    return { vreinterpretq_f64_f32(a.low), vreinterpretq_f64_f32(a.high) };
}

NEON_INLINE __m256 _mm256_castpd_ps(__m256d a) {
    return { vreinterpretq_f32_f64(a.low), vreinterpretq_f32_f64(a.high) };
}

NEON_INLINE __m256d as_doubles(__m256i a) {
    return _mm256_castps_pd(_mm256_castsi256_ps(a));
}

NEON_INLINE __m256i as_integers(__m256d a) {
    return _mm256_castps_si256(_mm256_castpd_ps(a));
}

// Conversions.

NEON_INLINE __m256i _mm256_cvtepu8_epi16(__m128i a) {
    const uint8x16_t x = vreinterpretq_u8_s8(a);
    return { bytes(vmovl_u8(vget_low_u8(x))), bytes(vmovl_high_u8(x)) };
}

NEON_INLINE __m256i _mm256_cvtepi8_epi16(__m128i a) {
    return { bytes(vmovl_s8(vget_low_s8(a))), bytes(vmovl_high_s8(a)) };
}

NEON_INLINE __m256i _mm256_cvtepu8_epi32(__m128i a) {
    const uint16x8_t x = vmovl_u8(vget_low_u8(vreinterpretq_u8_s8(a)));
    return { bytes(vmovl_u16(vget_low_u16(x))), bytes(vmovl_high_u16(x)) };
}

NEON_INLINE __m256i _mm256_cvtepi8_epi32(__m128i a) {
    const int16x8_t x = vmovl_s8(vget_low_s8(a));
    return { bytes(vmovl_s16(vget_low_s16(x))), bytes(vmovl_high_s16(x)) };
}

NEON_INLINE __m256 _mm256_cvtepi32_ps(__m256i a) {
    return { vcvtq_f32_s32(dwords(a.low)), vcvtq_f32_s32(dwords(a.high)) };
}

NEON_INLINE __m128 _mm_cvtph_ps(__m128i a) {
    return vcvt_f32_f16(vreinterpret_f16_s8(vget_low_s8(a)));
}

NEON_INLINE __m256 _mm256_cvtph_ps(__m128i a) {
    return { _mm_cvtph_ps(a), vcvt_f32_f16(vreinterpret_f16_s8(vget_high_s8(a))) };
}

// Rounds to the nearest integer, ties to even. A number that does not fit into an int32 becomes the least one.
NEON_INLINE __m128i to_integers(__m128 a) {
    const uint32x4_t fits = vcltq_f32(vabsq_f32(a), vdupq_n_f32(2147483648.0f));
    return bytes(vbslq_s32(fits, vcvtnq_s32_f32(a), vdupq_n_s32(INT32_MIN)));
}

NEON_INLINE __m256i _mm256_cvtps_epi32(__m256 a) {
    return { to_integers(a.low), to_integers(a.high) };
}

NEON_INLINE __m256d _mm256_cvtps_pd(__m128 a) {
    return { vcvt_f64_f32(vget_low_f32(a)), vcvt_high_f64_f32(a) };
}

enum { _MM_FROUND_TO_NEAREST_INT = 0, _MM_FROUND_NO_EXC = 8 };

NEON_INLINE __m128i _mm256_cvtps_ph(__m256 a, int /*to the nearest even*/) {
    return vreinterpretq_s8_f16(vcombine_f16(vcvt_f16_f32(a.low), vcvt_f16_f32(a.high)));
}

NEON_INLINE uint16_t _cvtss_sh(float x, int /*to the nearest even*/) {
    return vget_lane_u16(vreinterpret_u16_f16(vcvt_f16_f32(vdupq_n_f32(x))), 0);
}

NEON_INLINE float _cvtsh_ss(uint16_t x) {
    return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(x))), 0);
}

NEON_INLINE __m256 _mm256_round_ps(__m256 a, int /*to the nearest even*/) {
    return { vrndnq_f32(a.low), vrndnq_f32(a.high) };
}

// Arithmetic.

NEON_INLINE __m256 _mm256_fmadd_ps(__m256 a, __m256 b, __m256 c) {
    return { vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high) };
}

NEON_INLINE __m256 _mm256_fnmadd_ps(__m256 a, __m256 b, __m256 c) {
    return { vfmsq_f32(c.low, a.low, b.low), vfmsq_f32(c.high, a.high, b.high) };
}

NEON_INLINE __m256d _mm256_fmadd_pd(__m256d a, __m256d b, __m256d c) {
    return { vfmaq_f64(c.low, a.low, b.low), vfmaq_f64(c.high, a.high, b.high) };
}

NEON_INLINE __m256d _mm256_add_pd(__m256d a, __m256d b) {
    return { vaddq_f64(a.low, b.low), vaddq_f64(a.high, b.high) };
}

NEON_INLINE __m256d _mm256_sub_pd(__m256d a, __m256d b) {
    return { vsubq_f64(a.low, b.low), vsubq_f64(a.high, b.high) };
}

// b where a lane's mask has its highest bit set; here a lane of a mask is all ones or all zeros.

NEON_INLINE __m256 _mm256_blendv_ps(__m256 a, __m256 b, __m256 mask) {
    return { vbslq_f32(bits(mask.low), b.low, a.low), vbslq_f32(bits(mask.high), b.high, a.high) };
}

NEON_INLINE __m256i _mm256_blendv_epi8(__m256i a, __m256i b, __m256i mask) {
    return { vbslq_s8(vreinterpretq_u8_s8(mask.low), b.low, a.low),
             vbslq_s8(vreinterpretq_u8_s8(mask.high), b.high, a.high) };
}

enum { _CMP_EQ_OQ = 0, _CMP_LT_OQ = 17 };

NEON_INLINE __m256 _mm256_cmp_ps(__m256 a, __m256 b, int comparison) {
    return comparison == _CMP_LT_OQ ? __m256{ floats(vcltq_f32(a.low, b.low)), floats(vcltq_f32(a.high, b.high)) }
                                    : __m256{ floats(vceqq_f32(a.low, b.low)), floats(vceqq_f32(a.high, b.high)) };
}

} // namespace eagle3
#endif
