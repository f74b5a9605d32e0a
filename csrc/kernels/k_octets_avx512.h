// The products of repacked K-quants by few rows with AVX-512-VNNI: an octet at a time, as it lies in memory. The
// results are the bits of k_quants_avx512.h, which takes longer to unpack an octet and is faster for each row.
#pragma once

#include "kernels/avx512.h"
#include "kernels/k_quads_avx2.h"
#include "kernels/k_quants.h"

#if defined(__x86_64__)

namespace eagle3::kernels::avx512 {

constexpr int64_t FEW_ROWS = 12;

using k_quads::quad_scales;

// A block of eight repacked channels. Derived types unpack both of its quads at once.
template <class Quads>
struct repacked_octet {
    using quads              = Quads;
    static constexpr int SUB = Quads::SUB, N_SCALES = QK_K / SUB / 4; // vectors of four scales of each channel
    static_assert(four_fit<Quads> && Quads::OFFSET_BITS == 0, "");

    Quads w;

    AVX512_INLINE void scales(__m512i (&scale)[N_SCALES], __m512i (&min)[N_SCALES], __m512 & d) const {
        quad_scales<SUB> s[2];
        w.scales(s);
        for (int i = 0; i < N_SCALES; ++i) {
            scale[i] = join(s[0].scale[i], s[1].scale[i]);
            min[i]   = join(s[0].min[i], s[1].min[i]);
        }
        d = join(s[0].d, s[1].d);
    }
};

template <class Format>
struct octet;

template <>
struct octet<k_quads::q4_K> : repacked_octet<k_quads::repacked_quads<k_quads::q4_K>> {
    template <int P>
    AVX512_INLINE void unpack(__m512i (&v)[8]) const {
        for (int i = 0; i < 4; ++i) {
            const __m512i q = load512(w.w + quads::QS + 256 * P + 64 * i);
            v[i]            = low_bits(q, 0, 15);
            v[i + 4]        = low_bits(q, 4, 15);
        }
    }
};

template <>
struct octet<k_quads::q2_K> : repacked_octet<k_quads::repacked_quads<k_quads::q2_K>> {
    template <int P>
    AVX512_INLINE void unpack(__m512i (&v)[8]) const {
        for (int i = 0; i < 2; ++i) {
            const __m512i q = load512(w.w + quads::QS + 64 * (4 * (P / 2) + 2 * (P % 2) + i));
            v[i]            = low_bits(q, 0, 3);
            v[i + 2]        = low_bits(q, 2, 3);
            v[i + 4]        = low_bits(q, 4, 3);
            v[i + 6]        = low_bits(q, 6, 3);
        }
    }
};

AVX512_INLINE __m512i eight_for_all(const void * eight_bytes) {
    return _mm512_set1_epi64(avx2::read<int64_t>(eight_bytes));
}

// Scale `i` of each channel, in the first and third of four places: four products fit into 16 bits.
AVX512_INLINE __m512i spread(__m512i scales, int i) {
    const __m128i first =
        _mm_setr_epi8(0, 1, -128, -128, 0, 1, -128, -128, 8, 9, -128, -128, 8, 9, -128, -128); // -128: 0
    const __m128i at = _mm_add_epi8(first, _mm_set1_epi8(static_cast<char>(2 * i)));
    return _mm512_shuffle_epi8(scales, _mm512_broadcast_i32x4(at));
}

// Multiplies quarter P of an octet's block by n rows, and adds the products to two sums for each channel.
template <int P, class Octet>
AVX512_INLINE void add_quarter(const Octet & w, const __m512i * scales, const uint8_t * rows, int64_t row_bytes,
                               int64_t n, __m512i * sums) {
    constexpr int SUB = Octet::SUB, N = SUB / 8;
    constexpr int FIRST = SUB == 32 ? 64 * P : 128 * (P / 2) + 16 * (P % 2); // input
    __m512i       v[8], scale[64 / SUB];
    w.template unpack<P>(v);
    for (int g = 0; g < 64 / SUB; ++g) {
        const int sub = (FIRST + 32 * g) / SUB;
        scale[g]      = spread(scales[sub / 4], sub % 4);
    }
    for (int64_t r = 0; r < n; ++r) {
        const auto * y   = reinterpret_cast<const block_q8<SUB> *>(rows + r * row_bytes)->qs + FIRST;
        __m512i      sum = P == 0 ? _mm512_setzero_si512() : sums[r];
        for (int g = 0; g < 64 / SUB; ++g) {
            __m512i a = _mm512_setzero_si512();
            for (int i = 0; i < N; ++i) {
                a = _mm512_dpbusd_epi32(a, v[N * g + i], eight_for_all(y + 32 * g + 8 * i));
            }
            sum = _mm512_dpwssd_epi32(sum, a, scale[g]);
        }
        sums[r] = sum;
    }
}

// Multiplies an octet by n rows, at most FEW_ROWS: out[r * ldo + channel].
template <class Octet>
AVX512 void compute_octet(Octet w, int64_t nb, const uint8_t * rows, int64_t n, float * out, int64_t ldo) {
    using block = block_q8<Octet::SUB>;

    const int64_t row_bytes = nb * static_cast<int64_t>(sizeof(block));
    __m512        acc[FEW_ROWS];
    __m512i       sums[FEW_ROWS];
    for (int64_t r = 0; r < n; ++r) {
        acc[r] = _mm512_setzero_ps();
    }
    for (int64_t b = 0; b < nb; ++b, w.w.advance(), rows += sizeof(block)) {
        __m512i scale[Octet::N_SCALES], min[Octet::N_SCALES];
        __m512  d;
        w.scales(scale, min, d);
        k_quads::prefetch(w.w.w + nb * Octet::quads::SIZE, Octet::quads::SIZE); // the next octet
        add_quarter<0>(w, scale, rows, row_bytes, n, sums);
        add_quarter<1>(w, scale, rows, row_bytes, n, sums);
        add_quarter<2>(w, scale, rows, row_bytes, n, sums);
        add_quarter<3>(w, scale, rows, row_bytes, n, sums);
        for (int64_t r = 0; r < n; ++r) {
            const auto & y    = *reinterpret_cast<const block *>(rows + r * row_bytes);
            __m512i      mins = _mm512_setzero_si512();
            for (int i = 0; i < Octet::N_SCALES; ++i) {
                mins = _mm512_dpwssd_epi32(mins, min[i], eight_for_all(y.sums + 4 * i));
            }
            const __m512 both = _mm512_cvtepi32_ps(_mm512_add_epi32(even(sums[r], mins), odd(sums[r], mins)));
            acc[r]            = _mm512_fmadd_ps(both, _mm512_mul_ps(d, _mm512_set1_ps(y.d)), acc[r]);
        }
    }
    const __m512i low = _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 0, 1, 4, 5, 8, 9, 12, 13);
    for (int64_t r = 0; r < n; ++r) {
        const __m512 x = _mm512_add_ps(acc[r], _mm512_permute_ps(acc[r], 0b01'00'11'10)); // scales' and mins' part
        _mm256_storeu_ps(out + r * ldo, _mm512_castps512_ps256(_mm512_permutexvar_ps(low, x)));
    }
}

} // namespace eagle3::kernels::avx512
#endif
