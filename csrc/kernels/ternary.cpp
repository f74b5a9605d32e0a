// Weights of one or two bits: Q1_0 (-1 and 1, a scale for 128), Q2_0 (-1 to 2, a scale for 64), and the ternary types
// TQ1_0, of which five share a byte, and TQ2_0 (a scale for 256).
#include "kernels/blocks.h"
#include "kernels/formats.h"

#ifdef EAGLE3_HAS_KERNELS

namespace eagle3::kernels {

namespace {

using namespace avx2;

// Values are one more than what they stand for.
template <int64_t BYTES, int64_t INPUTS>
struct few_bits : mapped_blocks<BYTES, INPUTS> {
    static constexpr bool is_signed = false;
    static constexpr int  largest   = 3;
    using sums                      = offset_sums<1>;
};

AVX2_INLINE __m256i low_bits(__m256i x, int shift) {
    return _mm256_and_si256(_mm256_srli_epi16(x, shift), _mm256_set1_epi8(3));
}

// A block is a scale, then a bit of each value.
struct q1_0 : few_bits<18, 128> {
    AVX2_INLINE static void unpack(const uint8_t * p, int64_t b, size_t stride, unpacked & w) {
        p += b / 4 * block_bytes;
        if (b % 4 == 0) {
            w.super_d = load_halves(p, stride);
        }
        w.d = w.super_d;
        masks_of_bits(load_dwords(p + 2 + 4 * (b % 4), stride), w.q);
        for (__m256i & q : w.q) {
            q = _mm256_and_si256(q, _mm256_set1_epi8(2));
        }
    }
};

// A block is a scale, then bytes of four values that follow each other.
struct q2_0 : few_bits<18, 64> {
    AVX2_INLINE static void unpack(const uint8_t * p, int64_t b, size_t stride, unpacked & w) {
        p += b / 2 * block_bytes;
        if (b % 2 == 0) {
            w.super_d = load_halves(p, stride);
        }
        w.d = w.super_d;
        for (int i = 0; i < 8; i += 4) {
            const __m256i four = load_dwords(p + 2 + 8 * (b % 2) + i, stride);
            for (int j = 0; j < 4; ++j) {
                const __m256i byte = _mm256_and_si256(_mm256_srli_epi32(four, 8 * j), _mm256_set1_epi32(0xff));
                const __m256i two  = _mm256_or_si256(byte, _mm256_slli_epi32(byte, 12));
                w.q[i + j]         = low_bits(_mm256_or_si256(two, _mm256_slli_epi32(two, 6)), 0);
            }
        }
    }
};

// A block is bytes of four values, of which each is 32 after the one before, then a scale.
struct tq2_0 : few_bits<66, QK_K> {
    AVX2_INLINE static void unpack(const uint8_t * p, int64_t b, size_t stride, unpacked & w) {
        const auto i = static_cast<int>(b % 8);
        p += b / 8 * block_bytes;
        if (i == 0) {
            w.super_d = load_halves(p + 64, stride);
        }
        w.d = w.super_d;
        if (i % 4 == 0) {
            load_transposed(p + 8 * i, stride, w.packed);
            load_transposed(p + 8 * i + 16, stride, w.packed + 4);
        }
        for (int j = 0; j < 8; ++j) {
            w.q[j] = low_bits(w.packed[j], i % 4 * 2);
        }
    }
};

// A block is 32 bytes whose values are 32 after each other, 16 bytes with 16 between them, four with four, and a scale.
// A byte is a fraction of 256 whose digits to base 3 are the values.
struct tq1_0 : few_bits<54, QK_K> {
    AVX2_INLINE static void unpack(const uint8_t * p, int64_t b, size_t stride, unpacked & w) {
        const auto i = static_cast<int>(b % 8);
        p += b / 8 * block_bytes;
        if (i == 0) {
            w.super_d = load_halves(p + 52, stride);
            load_transposed(p, stride, w.packed);
            load_transposed(p + 16, stride, w.packed + 4);
        } else if (i == 5) {
            load_transposed(p + 32, stride, w.packed);
        }
        w.d = w.super_d;
        if (i < 5) {
            for (int j = 0; j < 8; ++j) {
                w.q[j] = next_digit(w.packed[j]);
            }
            return;
        }
        for (int j = 0; j < 4; ++j) {
            w.q[j] = next_digit(w.packed[j]);
        }
        __m256i last = load_dwords(p + 48, stride);
        for (int j = 0; j < 4; ++j) {
            w.q[4 + j] = next_digit(i < 7 ? w.packed[j] : last);
        }
    }

  private:
    AVX2_INLINE static __m256i next_digit(__m256i & x) {
        const __m256i one = _mm256_set1_epi8(86), two = _mm256_set1_epi8(static_cast<char>(171));
        const __m256i is_one = _mm256_cmpeq_epi8(_mm256_max_epu8(x, one), x); // -1 if it is at least that
        const __m256i is_two = _mm256_cmpeq_epi8(_mm256_max_epu8(x, two), x);
        x                    = _mm256_add_epi8(_mm256_add_epi8(x, x), x);
        return _mm256_sub_epi8(_mm256_setzero_si256(), _mm256_add_epi8(is_one, is_two));
    }
};

} // namespace

const std::vector<kernel> q1_0_kernels  = blocks_kernels<q1_0>("q1_0", GGML_TYPE_Q1_0);
const std::vector<kernel> q2_0_kernels  = blocks_kernels<q2_0>("q2_0", GGML_TYPE_Q2_0);
const std::vector<kernel> tq1_0_kernels = blocks_kernels<tq1_0, q8_K_rows>("tq1_0", GGML_TYPE_TQ1_0);
const std::vector<kernel> tq2_0_kernels = blocks_kernels<tq2_0, q8_K_rows>("tq2_0", GGML_TYPE_TQ2_0);

} // namespace eagle3::kernels
#endif
