// The product of mapped Q6_K by one row with AVX-512-VNNI: nothing is transposed but sums, since transposing weights
// takes longer than multiplying them once. A block's sum is the same integer as in k_quants_avx512.h, added up in the
// same order.
#pragma once

#include "kernels/k_channels_avx512.h"
#include "kernels/k_quants.h"

#if defined(__x86_64__)

namespace eagle3::kernels::avx512 {

// 256 activations for weights with an offset.
struct block_q8_offset {
    int8_t  qs[QK_K];
    int32_t sums[QK_K / 16]; // of 16 activations each, times -offset
    float   d;
};

// A lane's four weights, times four activations: at most 16 bits. scales: sixteen dwords whose high words are zero.
AVX512_INLINE __m512i add_product(__m512i sum, __m512i q, __m512i y, __m512i scales, int first) {
    const __m512i by_group = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    const __m512i dot      = _mm512_dpbusd_epi32(_mm512_setzero_si512(), q, y);
    const __m512i scale    = _mm512_permutexvar_epi32(_mm512_add_epi32(by_group, _mm512_set1_epi32(first)), scales);
    return _mm512_dpwssd_epi32(sum, dot, scale);
}

// Multiplies a block of 256 weights by activations y; its lanes are to be added up.
AVX512_INLINE __m512i multiply_q6_K(const uint8_t * w, const __m512i (&y)[4], __m512i sums) {
    using k_quads::q6_K;
    const __m512i scales = _mm512_cvtepi8_epi32(k_quads::load16(w + q6_K::SCALES));
    const __m512i words  = _mm512_and_si512(scales, _mm512_set1_epi32(0xffff));
    const __m512i left = join(_mm256_set1_epi16(4), _mm256_set1_epi16(2)), high = _mm512_set1_epi8(48);
    const __m512i right = join(_mm256_setzero_si256(), _mm256_set1_epi16(2));
    __m512i       sum   = _mm512_mullo_epi32(scales, sums);
    for (int half = 0; half < 2; ++half) {
        const __m512i low = load512(w + q6_K::QL + 64 * half);
        const __m512i h   = _mm512_broadcast_i64x4(avx2::load256(w + q6_K::QH + 32 * half));
        const __m512i a   = _mm512_ternarylogic_epi32(low_bits(low, 0, 15), _mm512_sllv_epi16(h, left), high, 0xf8);
        const __m512i b   = _mm512_ternarylogic_epi32(low_bits(low, 4, 15), _mm512_srlv_epi16(h, right), high, 0xf8);
        sum               = add_product(sum, a, y[2 * half], words, 8 * half);
        sum               = add_product(sum, b, y[2 * half + 1], words, 8 * half + 4);
    }
    return sum;
}

// Adds up the lanes of each vector, in two steps: lane i gets a sum of x[i].
AVX512_INLINE __m512i sums_of_four(const __m512i (&x)[4]) {
    const __m512i a = _mm512_add_epi32(_mm512_unpacklo_epi32(x[0], x[1]), _mm512_unpackhi_epi32(x[0], x[1]));
    const __m512i b = _mm512_add_epi32(_mm512_unpacklo_epi32(x[2], x[3]), _mm512_unpackhi_epi32(x[2], x[3]));
    return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

AVX512_INLINE __m512i sums_of_two(__m512i a, __m512i b) {
    return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
}

// Multiplies sixteen channels by a row.
AVX512 inline __m512 multiply_row(mapped_channels<k_quads::q6_K> channels, int64_t nb,
                                  const in_lines<block_q8_offset> * row) {
    using k_quads::q6_K;
    __m512 acc = _mm512_setzero_ps();
    for (int64_t b = 0; b < nb; ++b, ++row) {
        const uint8_t * after = channels.next + 16 * q6_K::SIZE;
        const __m512i y[] = { load512(row->qs), load512(row->qs + 64), load512(row->qs + 128), load512(row->qs + 192) };
        const __m512i sums = load512(row->sums);
        __m512i       quads[4];
        uint16_t      d[16];
        for (int c = 0; c < 16; c += 4) {
            __m512i x[4];
            for (int i = 0; i < 4; ++i) {
                channels.prefetch(c + i);
                x[i]     = multiply_q6_K(channels.w[c + i], y, sums);
                d[c + i] = avx2::read<uint16_t>(channels.w[c + i] + q6_K::D);
            }
            quads[c / 4] = sums_of_four(x);
        }
        const __m512i total = sums_of_two(sums_of_two(quads[0], quads[1]), sums_of_two(quads[2], quads[3]));
        const __m512  by_d  = _mm512_mul_ps(_mm512_cvtph_ps(avx2::load256(d)), _mm512_set1_ps(row->d));
        acc                 = _mm512_fmadd_ps(_mm512_cvtepi32_ps(total), by_d, acc);
        channels.advance(after);
    }
    return _mm512_add_ps(acc, _mm512_setzero_ps());
}

} // namespace eagle3::kernels::avx512
#endif
