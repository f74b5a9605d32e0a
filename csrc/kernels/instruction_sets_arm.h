// The instruction sets of 64-bit ARM, see instruction_sets.h. Weights are multiplied as int8, which the values of all
// formats fit into. Sums are the same integers as on x86.
//
// Dotprod and i8mm are written as assembly, as VNNI is, and by their numbers: some assemblers do not know them, or do
// not accept them in a file that is compiled for any ARMv8.
#pragma once

#include "kernels/avx2.h"
#include "kernels/kernel.h"

#if defined(__aarch64__) && defined(EAGLE3_HAS_KERNELS)

#if defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

// The number of each register, since an operand is a register's name.
#define EAGLE3_REGISTERS                                                                                               \
    ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n"                   \
    ".equ .Lregister_v\\n, \\n\n.endr\n"
#define EAGLE3_OF_THREE " | .Lregister_%0 | .Lregister_%1 << 5 | .Lregister_%2 << 16"

namespace eagle3::kernels::avx2 {

// Asks Linux or macOS whether the processor has a feature. Other systems use NEON alone.
inline bool has_feature([[maybe_unused]] unsigned long type, [[maybe_unused]] int bit,
                        [[maybe_unused]] const char * name) {
#if defined(__linux__)
    return getauxval(type) >> bit & 1;
#elif defined(__APPLE__)
    int    value = 0;
    size_t size  = sizeof(value);
    return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
#else
    return false;
#endif
}

struct neon {
    static constexpr const char * name          = "neon";
    static constexpr bool         has_vnni      = false;
    static constexpr bool         has_signed    = true;
    static constexpr bool         is_wide       = false;
    static constexpr bool         has_matrices  = false;
    static constexpr bool         has_lanes     = true;
    static constexpr bool         scales_dwords = false;

    static bool is_supported() { return true; }

    AVX2_INLINE static __m256i add_words(__m256i sum, __m256i a, __m256i b) {
        return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
    }

    // The sums of pairs of products of int8, in 16 bits.
    template <bool>
    AVX2_INLINE static __m256i multiply_bytes(__m256i a, __m256i b) {
        return { multiply_bytes(a.low, b.low), multiply_bytes(a.high, b.high) };
    }

    AVX2_INLINE static __m256i fold(__m256i low, __m256i high) {
        return { bytes(vpaddq_s32(dwords(low.low), dwords(low.high))),
                 bytes(vpaddq_s32(dwords(high.low), dwords(high.high))) };
    }

    AVX2_INLINE static __m256 unfold(__m256 v) { return v; }

  private:
    AVX2_INLINE static __m128i multiply_bytes(__m128i a, __m128i b) {
        return bytes(vpaddq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)), vmull_high_s8(a, b)));
    }
};

struct dotprod : neon {
    static constexpr const char * name          = "dotprod";
    static constexpr bool         has_vnni      = true;
    static constexpr bool         scales_dwords = true;

    static bool is_supported() { return has_feature(16, 20, "hw.optional.arm.FEAT_DotProd"); }

    // Adds four products of int8 each to int32 sums.
    AVX2_INLINE static __m256i add_bytes(__m256i sum, __m256i a, __m256i b) {
        return { add_bytes(sum.low, a.low, b.low), add_bytes(sum.high, a.high, b.high) };
    }

    AVX2_INLINE static __m256i add_scaled(__m256i sum, __m256i a, __m256i scale) {
        return { bytes(vmlaq_s32(dwords(sum.low), dwords(a.low), dwords(scale.low))),
                 bytes(vmlaq_s32(dwords(sum.high), dwords(a.high), dwords(scale.high))) };
    }

    // Multiplies vectors q[i], whose lanes are four inputs, by the row's values from 4 i on, and returns the sums.
    template <int n>
    AVX2_INLINE static __m256i add_fours(const __m256i * q, const uint8_t * y) {
        __m256i sum = _mm256_setzero_si256();
        for (int i = 0; i < n; i += 4) {
            const __m128i values = vld1q_s8(reinterpret_cast<const int8_t *>(y + 4 * i));
            add_lane<0>(sum, q[i], values);
            add_lane<1>(sum, q[i + 1], values);
            add_lane<2>(sum, q[i + 2], values);
            add_lane<3>(sum, q[i + 3], values);
        }
        return sum;
    }

  private:
    AVX2_INLINE static __m128i add_bytes(__m128i sum, __m128i a, __m128i b) {
        asm(EAGLE3_REGISTERS ".inst 0x4e809400" EAGLE3_OF_THREE "// sdot %0.4s, %1.16b, %2.16b"
            : "+w"(sum)
            : "w"(a), "w"(b));
        return sum;
    }

    template <int lane>
    AVX2_INLINE static __m128i add_lane(__m128i sum, __m128i a, __m128i values) {
        asm(EAGLE3_REGISTERS ".inst %c3" EAGLE3_OF_THREE "// sdot %0.4s, %1.16b, %2.4b[]"
            : "+w"(sum)
            : "w"(a), "w"(values), "i"(0x4f80e000 | (lane & 1) << 21 | (lane >> 1) << 11));
        return sum;
    }

    template <int lane>
    AVX2_INLINE static void add_lane(__m256i & sum, __m256i a, __m128i values) {
        sum = { add_lane<lane>(sum.low, a.low, values), add_lane<lane>(sum.high, a.high, values) };
    }
};

struct i8mm : dotprod {
    static constexpr const char * name         = "i8mm";
    static constexpr bool         has_matrices = true;

    static bool is_supported() { return dotprod::is_supported() && has_feature(26, 13, "hw.optional.arm.FEAT_I8MM"); }

    // Multiplies eight inputs of two channels by those of two rows in each half: (c0 r0, c0 r1, c1 r0, c1 r1).
    AVX2_INLINE static __m256i add_matrices(__m256i sum, __m256i a, __m128i rows) {
        return { add_matrix(sum.low, a.low, rows), add_matrix(sum.high, a.high, rows) };
    }

    // Loads eight inputs of each of two rows.
    AVX2_INLINE static __m128i of_rows(const void * first, const void * second) {
        return vcombine_s8(vld1_s8(static_cast<const int8_t *>(first)), vld1_s8(static_cast<const int8_t *>(second)));
    }

    // Makes, of vectors whose lanes are four inputs of eight channels, vectors whose lanes are eight inputs: those of
    // the first four channels, then those of the others.
    AVX2_INLINE static void to_eights(const __m256i (&fours)[8], __m256i (&eights)[8]) {
        for (int i = 0; i < 4; ++i) {
            const __m256i a = fours[2 * i], b = fours[2 * i + 1];
            eights[i]     = { _mm_unpacklo_epi32(a.low, b.low), _mm_unpackhi_epi32(a.low, b.low) };
            eights[i + 4] = { _mm_unpacklo_epi32(a.high, b.high), _mm_unpackhi_epi32(a.high, b.high) };
        }
    }

    // Multiplies eight channels in such vectors by two rows.
    AVX2_INLINE static void multiply_rows(const __m256i (&eights)[8], const uint8_t * first, const uint8_t * second,
                                          __m256i & sums_of_first, __m256i & sums_of_second) {
        __m256i low = _mm256_setzero_si256(), high = low;
        for (int i = 0; i < 4; ++i) {
            const __m128i rows = of_rows(first + 8 * i, second + 8 * i);
            low                = add_matrices(low, eights[i], rows);
            high               = add_matrices(high, eights[i + 4], rows);
        }
        sums_of_first  = { bytes(vuzp1q_s32(dwords(low.low), dwords(low.high))),
                           bytes(vuzp1q_s32(dwords(high.low), dwords(high.high))) };
        sums_of_second = { bytes(vuzp2q_s32(dwords(low.low), dwords(low.high))),
                           bytes(vuzp2q_s32(dwords(high.low), dwords(high.high))) };
    }

  private:
    AVX2_INLINE static __m128i add_matrix(__m128i sum, __m128i a, __m128i b) {
        asm(EAGLE3_REGISTERS ".inst 0x4e80a400" EAGLE3_OF_THREE "// smmla %0.4s, %1.16b, %2.16b"
            : "+w"(sum)
            : "w"(a), "w"(b));
        return sum;
    }
};

template <bool = false, class Make>
std::vector<kernel> by_instruction_sets(Make && make) {
    return { make(i8mm{}), make(dotprod{}), make(neon{}) };
}

} // namespace eagle3::kernels::avx2
#endif
