// The products of K-quants with AVX-512-VNNI: eight channels at a time, two quads (k_quads_avx2.h). A block's sums are
// the same integers as with AVX2, added up block after block in the same order, so that the results are the same bits.
#pragma once

#include "kernels/avx512.h"
#include "kernels/k_quads_avx2.h"
#include "kernels/k_quants.h"

#if defined(__x86_64__)

#include <algorithm>

namespace eagle3::kernels::avx512 {

using k_quads::quad_scales;

// The scales of an octet's block, see quad_scales.
template <int SUB>
struct octet_scales {
    static constexpr int N = QK_K / SUB / 4;

    __m512i scale[N];
    __m512i min[N];
    __m512  d;
};

AVX512_INLINE __m512i low_bits(__m512i x, int shift, int mask) {
    return _mm512_and_si512(_mm512_srli_epi16(x, shift), _mm512_set1_epi8(static_cast<char>(mask)));
}

template <int SUB>
AVX512_INLINE void join_scales(const quad_scales<SUB> & low, const quad_scales<SUB> & high, octet_scales<SUB> & s) {
    for (int i = 0; i < s.N; ++i) {
        s.scale[i] = join(low.scale[i], high.scale[i]);
        s.min[i]   = join(low.min[i], high.min[i]);
    }
    s.d = join(low.d, high.d);
}

// Eight mapped channels, as two quads.
template <class Format>
struct mapped_octet {
    static constexpr int SUB = Format::SUB, OFFSET_BITS = Format::OFFSET_BITS, Q_MAX = Format::Q_MAX;

    k_quads::mapped_quad<Format> low, high;

    AVX512_INLINE void scales(octet_scales<SUB> & s) const {
        quad_scales<SUB> a[1], b[1];
        low.scales(a);
        high.scales(b);
        join_scales(a[0], b[0], s);
    }

    template <int P>
    AVX512_INLINE void unpack(__m512i (&v)[8]) const {
        __m256i a[8], b[8];
        low.template unpack<P>(a);
        high.template unpack<P>(b);
        for (int i = 0; i < 8; ++i) {
            v[i] = join(a[i], b[i]);
        }
    }

    // The next octet's channels lie after those of this one.
    void prefetch_next(int64_t b, int64_t nb) const {
        k_quads::prefetch(low.w[0] + (8 * nb + 7 * b) * Format::SIZE, 8 * Format::SIZE);
    }

    void advance() {
        low.advance();
        high.advance();
    }
};

// A block of eight repacked channels, as both quads of Quads. Derived types unpack both at once.
template <class Quads>
struct repacked_octet {
    using quads              = Quads;
    static constexpr int SUB = Quads::SUB, OFFSET_BITS = Quads::OFFSET_BITS, Q_MAX = Quads::Q_MAX;

    Quads w;

    AVX512_INLINE void scales(octet_scales<SUB> & s) const {
        quad_scales<SUB> both[2];
        w.scales(both);
        join_scales(both[0], both[1], s);
    }

    void prefetch_next(int64_t /*b*/, int64_t nb) const { k_quads::prefetch(w.w + nb * Quads::SIZE, Quads::SIZE); }

    void advance() { w.advance(); }
};

struct q4_Kx8_octet : repacked_octet<k_quads::repacked_quads<k_quads::q4_K>> {
    template <int P>
    AVX512_INLINE void unpack(__m512i (&v)[8]) const {
        for (int i = 0; i < 4; ++i) {
            const __m512i q = load512(w.w + quads::QS + 256 * P + 64 * i);
            v[i]            = low_bits(q, 0, 15);
            v[i + 4]        = low_bits(q, 4, 15);
        }
    }
};

struct q2_Kx8_octet : repacked_octet<k_quads::repacked_quads<k_quads::q2_K>> {
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

AVX512_INLINE __m512i for_all(const void * eight_bytes) {
    return _mm512_set1_epi64(avx2::read<int64_t>(eight_bytes));
}

// Scale `i` of each channel: in all four places, or in the first and third.
template <class Octet>
AVX512_INLINE __m512i spread(__m512i scales, int i) {
    const char    a = four_fit<Octet> ? -128 : 0, b = four_fit<Octet> ? -128 : 1; // -128: a zero
    const __m128i first = _mm_setr_epi8(0, 1, a, b, 0, 1, a, b, 8, 9, a + 8, b + 8, 8, 9, a + 8, b + 8);
    const __m128i at    = _mm_add_epi8(first, _mm_set1_epi8(static_cast<char>(2 * i)));
    return _mm512_shuffle_epi8(scales, _mm512_broadcast_i32x4(at));
}

// Multiplies 64 inputs of an octet by those of a row, and adds the products to two sums for each channel.
template <class Octet>
AVX512_INLINE __m512i dot(__m512i        sum, const __m512i (&v)[8], const __m512i (&scale)[64 / Octet::SUB],
                          const int8_t * y) {
    constexpr int n = Octet::SUB / 8;
    for (int g = 0; g < 64 / Octet::SUB; ++g) {
        __m512i a;
        if constexpr (four_fit<Octet>) {
            a = _mm512_setzero_si512();
            for (int i = 0; i < n; ++i) {
                a = _mm512_dpbusd_epi32(a, v[n * g + i], for_all(y + 32 * g + 8 * i));
            }
        } else {
            a = _mm512_maddubs_epi16(v[n * g], for_all(y + 32 * g));
            for (int i = 1; i < n; ++i) {
                a = _mm512_add_epi16(a, _mm512_maddubs_epi16(v[n * g + i], for_all(y + 32 * g + 8 * i)));
            }
        }
        sum = _mm512_dpwssd_epi32(sum, a, scale[g]);
    }
    return sum;
}

// Multiplies quarter P of an octet's block by n rows, and adds the products to `sums`.
template <int P, class Octet>
AVX512_INLINE void add_quarter(const Octet & w, const octet_scales<Octet::SUB> & s, const uint8_t * rows,
                               int64_t row_bytes, int64_t n, __m512i * sums) {
    constexpr int SUB   = Octet::SUB;
    constexpr int FIRST = SUB == 32 ? 64 * P : 128 * (P / 2) + 16 * (P % 2); // input
    __m512i       v[8], scale[64 / SUB];
    w.template unpack<P>(v);
    for (int g = 0; g < 64 / SUB; ++g) {
        const int sub = (FIRST + 32 * g) / SUB;
        scale[g]      = spread<Octet>(s.scale[sub / 4], sub % 4);
    }
    for (int64_t r = 0; r < n; ++r) {
        const auto * y = reinterpret_cast<const block_q8<SUB> *>(rows + r * row_bytes)->qs + FIRST;
        sums[r]        = dot<Octet>(P == 0 ? _mm512_setzero_si512() : sums[r], v, scale, y);
    }
}

// Multiplies an octet by n rows, at most ROWS_MAX: out[n][8].
template <class Octet>
AVX512 void compute_octet(Octet w, int64_t nb, const uint8_t * rows, int64_t n, float * out) {
    constexpr int SUB = Octet::SUB;
    using block       = block_q8<SUB>;

    const int64_t row_bytes = nb * static_cast<int64_t>(sizeof(block));
    __m512        acc[ROWS_MAX];
    __m512i       sums[ROWS_MAX];
    for (int64_t r = 0; r < n; ++r) {
        acc[r] = _mm512_setzero_ps();
    }
    for (int64_t b = 0; b < nb; ++b, w.advance(), rows += sizeof(block)) {
        octet_scales<SUB> s;
        w.scales(s);
        w.prefetch_next(b, nb);
        add_quarter<0>(w, s, rows, row_bytes, n, sums);
        add_quarter<1>(w, s, rows, row_bytes, n, sums);
        add_quarter<2>(w, s, rows, row_bytes, n, sums);
        add_quarter<3>(w, s, rows, row_bytes, n, sums);
        for (int64_t r = 0; r < n; ++r) {
            const auto & y    = *reinterpret_cast<const block *>(rows + r * row_bytes);
            __m512i      sum  = sums[r];
            __m512i      mins = _mm512_setzero_si512();
            for (int i = 0; i < s.N; ++i) {
                mins = _mm512_dpwssd_epi32(mins, s.min[i], for_all(y.sums + 4 * i));
            }
            if (Octet::OFFSET_BITS) {
                sum  = _mm512_sub_epi32(sum, _mm512_slli_epi32(mins, Octet::OFFSET_BITS));
                mins = _mm512_setzero_si512();
            }
            const __m512  a = _mm512_castsi512_ps(sum), m = _mm512_castsi512_ps(mins);
            const __m512i even = _mm512_castps_si512(_mm512_shuffle_ps(a, m, 0x88));
            const __m512i odd  = _mm512_castps_si512(_mm512_shuffle_ps(a, m, 0xdd));
            const __m512  both = _mm512_cvtepi32_ps(_mm512_add_epi32(even, odd));
            acc[r]             = _mm512_fmadd_ps(both, _mm512_mul_ps(s.d, _mm512_set1_ps(y.d)), acc[r]);
        }
    }
    const __m512i low = _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 0, 1, 4, 5, 8, 9, 12, 13);
    for (int64_t r = 0; r < n; ++r) {
        const __m512 x = _mm512_add_ps(acc[r], _mm512_permute_ps(acc[r], 0b01'00'11'10)); // scales' and mins' part
        _mm256_storeu_ps(out + 8 * r, _mm512_castps512_ps256(_mm512_permutexvar_ps(low, x)));
    }
}

template <class Octet>
void compute_octet(const Octet & w, int64_t nb, const uint8_t * rows, int64_t n_rows, float * out, int64_t ldo,
                   int64_t n_channels) {
    compute_rows<Octet::SUB, 8>(
        nb, rows, n_rows, out, ldo, n_channels,
        [&](const uint8_t * some, int64_t n, float * results) { compute_octet(w, nb, some, n, results); });
}

template <class Format>
void compute(const uint8_t * weights, int64_t k, const uint8_t * rows, int64_t n_rows, int64_t first, int64_t last,
             float * out, int64_t ldo) {
    const int64_t nb = k / QK_K;
    for (int64_t channel = first; channel < last; channel += 8) {
        mapped_octet<Format> w;
        for (int64_t i = 0; i < 8; ++i) { // the last octet is filled up with the last channel
            (i < 4 ? w.low : w.high).w[i % 4] = weights + std::min(channel + i, last - 1) * nb * Format::SIZE;
        }
        compute_octet(w, nb, rows, n_rows, out + channel, ldo, std::min<int64_t>(last - channel, 8));
    }
}

template <class Octet>
void compute_repacked(const uint8_t * weights, int64_t k, const uint8_t * rows, int64_t n_rows, int64_t first,
                      int64_t last, float * out, int64_t ldo) {
    const int64_t nb = k / QK_K;
    for (int64_t group = first; group < last; ++group) {
        Octet w;
        w.w.w = weights + group * nb * Octet::quads::SIZE;
        compute_octet(w, nb, rows, n_rows, out + 8 * group, ldo, 8);
    }
}

} // namespace eagle3::kernels::avx512
#endif
