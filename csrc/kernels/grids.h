// Weights that are indices into a grid of four or eight values, and their signs.
#pragma once

#include "kernels/blocks_avx2.h"

#ifdef EAGLE3_HAS_KERNELS

namespace eagle3::kernels::avx2 {

// The grid of a type, whose entries have four or eight int8 values. It is read from ggml's own dequantization:
// put(block, i, index) writes a block's index i, the first time with the scale for which values are the grid's.
template <class Entry, class Put>
std::vector<Entry> read_grid(ggml_type type, int64_t n_entries, Put && put) {
    constexpr int64_t    n_each = QK_K / sizeof(Entry);
    std::vector<Entry>   grid(n_entries);
    std::vector<uint8_t> block(ggml_type_size(type));
    for (int64_t first = 0; first < n_entries; first += n_each) {
        std::fill(block.begin(), block.end(), 0);
        for (int64_t i = 0; i < n_each; ++i) {
            put(block.data(), i, first + i);
        }
        float  values[QK_K];
        int8_t rounded[QK_K];
        ggml_get_type_traits(type)->to_float(block.data(), values, QK_K);
        std::transform(values, values + QK_K, rounded, [](float x) { return static_cast<int8_t>(x); });
        std::memcpy(grid.data() + first, rounded, sizeof(rounded));
    }
    return grid;
}

inline void put_half(uint8_t * p, uint16_t half) {
    std::memcpy(p, &half, sizeof(half));
}

// Writes inputs in fours: entry(c, l) are inputs 8 l to 8 l + 7 of channel c.
template <class F>
AVX2_INLINE void load_eights(F && entry, __m256i * q) {
#pragma GCC      unroll 8
    for (int i = 0; i < 8; ++i) {
        const int c = i % 4, l = i / 4 * 2;
        q[i] = join(entry(c, l), entry(c, l + 1), entry(4 + c, l), entry(4 + c, l + 1));
    }
    transpose(q);
    transpose(q + 4);
}

// The same where entry(c, l) are inputs 4 l to 4 l + 3.
template <class F>
AVX2_INLINE void load_fours(F && entry, __m256i * q) {
#pragma GCC      unroll 8
    for (int l = 0; l < 8; ++l) {
        q[l] = join(entry(0, l), entry(1, l), entry(2, l), entry(3, l), entry(4, l), entry(5, l), entry(6, l),
                    entry(7, l));
    }
}

// Bits `shift` and on of each channel.
AVX2_INLINE __m256i bits_of(__m256i x, int shift, int mask) {
    return _mm256_and_si256(_mm256_srli_epi32(x, shift), _mm256_set1_epi32(mask));
}

// N indices of eight channels each, which have more than eight bits.
template <int N>
struct indices {
    alignas(32) uint32_t of[N][8];

    // Writes indices `first` to first + 3: their low bytes are those of `low`, and the other BITS lie from bit 0,
    // STRIDE, 2 STRIDE ... of `high` on.
    template <int BITS, int STRIDE>
    AVX2_INLINE void put(int first, __m256i low, __m256i high) {
        for (int i = 0; i < 4; ++i) {
            const int     left  = 8 - STRIDE * i;
            const __m256i moved = left < 0 ? _mm256_srli_epi32(high, -left) : _mm256_slli_epi32(high, left);
            const __m256i above = _mm256_and_si256(moved, _mm256_set1_epi32(((1 << BITS) - 1) << 8));
            const __m256i index = _mm256_or_si256(bits_of(low, 8 * i, 255), above);
            _mm256_storeu_si256(reinterpret_cast<__m256i *>(of[first + i]), index);
        }
        asm("" : "+m"(of)); // or GCC takes the indices out of the vectors, which is slower than to load them
    }

    uint32_t at(int c, int l) const { return of[l][c]; }
};

// Adds to the low seven bits of each byte the eighth, with which an even number of them is set.
AVX2_INLINE __m256i with_parity(__m256i x) {
    const __m256i odd  = _mm256_broadcastsi128_si256( // has a number of four bits an odd number of them?
        _mm_setr_epi8(0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0));
    const __m256i low  = _mm256_and_si256(x, _mm256_set1_epi8(15));
    const __m256i high = _mm256_and_si256(_mm256_srli_epi16(x, 4), _mm256_set1_epi8(7));
    return _mm256_xor_si256(x, _mm256_xor_si256(_mm256_shuffle_epi8(odd, low), _mm256_shuffle_epi8(odd, high)));
}

// Spreads the low 28 bits of each channel to the low seven bits of four bytes.
AVX2_INLINE __m256i spread_sevens(__m256i x) {
    __m256i spread = _mm256_and_si256(x, _mm256_set1_epi32(0x7f));
    for (int i = 1; i < 4; ++i) {
        const __m256i byte = _mm256_and_si256(_mm256_slli_epi32(x, i), _mm256_set1_epi32(0x7f << 8 * i));
        spread             = _mm256_or_si256(spread, byte);
    }
    return spread;
}

// d (2 s + 1) of each channel.
AVX2_INLINE __m256 odd_scale(__m256 d, __m256i s) {
    const __m256i odd = _mm256_add_epi32(_mm256_add_epi32(s, s), _mm256_set1_epi32(1));
    return _mm256_mul_ps(d, _mm256_cvtepi32_ps(odd));
}

} // namespace eagle3::kernels::avx2
#endif
