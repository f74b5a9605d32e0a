// The products of repacked K-quants with AVX-512-VNNI: an octet at a time, as it lies in memory. A quarter of its block
// is unpacked once, into registers, and then multiplied by all rows.
#pragma once

#include "kernels/avx512.h"
#include "kernels/k_quads_avx2.h"
#include "kernels/k_quants.h"

#if defined(__x86_64__)

namespace eagle3::kernels::avx512 {

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

// Scales i and j of each channel, each twice: in 128 bits the first of both channels, then the second.
AVX512_INLINE __m512i spread(__m512i scales, int i, int j) {
    const __m512i twice = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 0, 1, 8, 9, 8, 9, 0, 1, 0, 1, 8, 9, 8, 9));
    const __m512i at    = _mm512_broadcast_i32x4(_mm_set_epi64x(0x0202020202020202 * j, 0x0202020202020202 * i));
    return _mm512_shuffle_epi8(scales, _mm512_add_epi8(twice, at));
}

// Multiplies quarter P of an octet's block by n rows, and adds the products to two sums for each channel. Sums of
// sixteen products fit into 16 bits, so that two sub-blocks are multiplied by their scales at once.
template <int P, class Octet>
AVX512_INLINE void add_quarter(const Octet & w, const __m512i * scales, const uint8_t * rows, int64_t row_bytes,
                               int64_t n, __m512i * sums) {
    constexpr int SUB = Octet::SUB, N = SUB / 8, N_PAIRS = 32 / SUB;
    constexpr int FIRST = SUB == 32 ? 64 * P : 128 * (P / 2) + 16 * (P % 2); // input
    __m512i       v[8], scale[N_PAIRS];
    w.template unpack<P>(v);
    for (int i = 0; i < N_PAIRS; ++i) {
        const int sub = (FIRST + 64 * i) / SUB;
        scale[i]      = spread(scales[sub / 4], sub % 4, sub % 4 + 32 / SUB);
    }
    for (int64_t r = 0; r < n; ++r) {
        const auto * y   = reinterpret_cast<const block_q8<SUB> *>(rows + r * row_bytes)->qs + FIRST;
        __m512i      sum = P == 0 ? _mm512_setzero_si512() : sums[r];
        for (int i = 0; i < N_PAIRS; ++i) {
            __m512i a[2] = { _mm512_setzero_si512(), _mm512_setzero_si512() };
            for (int g = 0; g < 2; ++g) {
                for (int j = 0; j < N; ++j) {
                    a[g] =
                        _mm512_dpbusd_epi32(a[g], v[N * (2 * i + g) + j], eight_for_all(y + 32 * (2 * i + g) + 8 * j));
                }
            }
            sum = _mm512_dpwssd_epi32(sum, _mm512_packs_epi32(a[0], a[1]), scale[i]);
        }
        sums[r] = sum;
    }
}

// Multiplies an octet by n rows, at most ROWS_TOGETHER_WIDE: out[r * ldo + channel].
template <class Octet>
AVX512 void compute_octet(Octet w, int64_t nb, const uint8_t * rows, int64_t n, float * out, int64_t ldo) {
    using block = in_lines<block_q8<Octet::SUB>>;

    const int64_t row_bytes = block::row_bytes(nb);
    __m512        acc[ROWS_TOGETHER_WIDE];
    __m512i       sums[ROWS_TOGETHER_WIDE];
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
            const __m512 first = _mm512_shuffle_ps(_mm512_castsi512_ps(sums[r]), _mm512_castsi512_ps(mins), 0x84);
            const __m512 last  = _mm512_shuffle_ps(_mm512_castsi512_ps(sums[r]), _mm512_castsi512_ps(mins), 0xde);
            const __m512 both =
                _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_castps_si512(first), _mm512_castps_si512(last)));
            acc[r] = _mm512_fmadd_ps(both, _mm512_mul_ps(d, _mm512_set1_ps(y.d)), acc[r]);
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
