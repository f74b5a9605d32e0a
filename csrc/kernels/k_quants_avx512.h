// The products of K-quants with AVX-512-VNNI: sixteen channels at a time, a channel per lane. A block of them is
// unpacked once, into a core's first cache, and then multiplied by all rows. A block's sums are the same integers as
// with AVX2, added up block after block in the same order, so that the results are the same bits.
#pragma once

#include "kernels/avx512.h"
#include "kernels/k_channels_avx512.h"
#include "kernels/k_octets_avx512.h"
#include "kernels/k_quants.h"

#if defined(__x86_64__)

#include <algorithm>
#include <type_traits>

namespace eagle3::kernels::avx512 {

constexpr int64_t N_TOGETHER = 8; // rows whose sums stay in registers

template <class Format>
struct mapped_wide : mapped_channels<Format> {
    using format = Format;

    AVX512_INLINE void unpack(wide_block<Format::SUB> & block) {
        const uint8_t * after = this->next + 16 * Format::SIZE;
        avx512::read(*this, block);
        avx512::unpack(*this, block.q);
        for (const uint8_t *& p : this->w) {
            p += Format::SIZE;
        }
        this->next = after;
    }
};

// Joins the scales of four quads.
template <int SUB>
AVX512_INLINE void join_scales(const quad_scales<SUB> (&s)[4], wide_block<SUB> & w) {
    for (int i = 0; i < s[0].N; ++i) {
        const __m512i low = join(s[0].scale[i], s[1].scale[i]), high = join(s[2].scale[i], s[3].scale[i]);
        const __m512i first = even(low, high), second = odd(low, high); // two scales each
        w.scale[4 * i]     = _mm512_srai_epi32(_mm512_slli_epi32(first, 16), 16);
        w.scale[4 * i + 1] = _mm512_srai_epi32(first, 16);
        w.scale[4 * i + 2] = _mm512_srai_epi32(_mm512_slli_epi32(second, 16), 16);
        w.scale[4 * i + 3] = _mm512_srai_epi32(second, 16);

        const __m512i low_min = join(s[0].min[i], s[1].min[i]), high_min = join(s[2].min[i], s[3].min[i]);
        w.min[2 * i]     = even(low_min, high_min);
        w.min[2 * i + 1] = odd(low_min, high_min);
    }
    const __m512 low = join(s[0].d, s[1].d), high = join(s[2].d, s[3].d);
    w.d    = _mm512_shuffle_ps(low, high, 0x44);
    w.dmin = _mm512_shuffle_ps(low, high, 0xee);
}

// Inputs 8 i to 8 i + 7 of two octets.
AVX512_INLINE void put_eight(__m512i low, __m512i high, __m512i * q) {
    q[0] = even(low, high);
    q[1] = odd(low, high);
}

AVX512_INLINE void unpack_octets(k_quads::q4_K, const uint8_t * low, const uint8_t * high, __m512i * q) {
    for (int i = 0; i < 16; ++i) {
        const __m512i a = load512(low + 64 * i), b = load512(high + 64 * i);
        __m512i *     first = q + 16 * (i / 4) + 2 * (i % 4);
        put_eight(low_bits(a, 0, 15), low_bits(b, 0, 15), first);
        put_eight(low_bits(a, 4, 15), low_bits(b, 4, 15), first + 8);
    }
}

AVX512_INLINE void unpack_octets(k_quads::q2_K, const uint8_t * low, const uint8_t * high, __m512i * q) {
    for (int i = 0; i < 8; ++i) {
        const __m512i a = load512(low + 64 * i), b = load512(high + 64 * i);
        for (int j = 0; j < 4; ++j) {
            put_eight(low_bits(a, 2 * j, 3), low_bits(b, 2 * j, 3), q + 32 * (i / 4) + 8 * j + 2 * (i % 4));
        }
    }
}

// Two repacked octets.
template <class Format>
struct repacked_wide {
    using format = Format;
    using octet  = k_quads::repacked_quads<Format>;

    octet low, high;

    AVX512_INLINE void unpack(wide_block<Format::SUB> & block) {
        quad_scales<Format::SUB> s[4], both[2];
        low.scales(both);
        s[0] = both[0], s[1] = both[1];
        high.scales(both);
        s[2] = both[0], s[3] = both[1];
        join_scales(s, block);
        unpack_octets(Format{}, low.w + octet::QS, high.w + octet::QS, block.q);
        low.advance();
        high.advance();
    }
};

AVX512_INLINE __m512i for_all(const void * four_bytes) {
    return _mm512_set1_epi32(avx2::read<int32_t>(four_bytes));
}

// 256 activations for weights with an offset.
struct block_q8_offset {
    int8_t  qs[QK_K];
    int32_t sums[QK_K / 16]; // of 16 activations each, times -offset
    float   d;
};

template <class Format>
using row_block = std::conditional_t<(Format::OFFSET_BITS > 0), block_q8_offset, block_q8<Format::SUB>>;

// Multiplies a block by N rows, and adds the products to acc: scales' and mins' part of each row.
template <class Format, int64_t N>
AVX512 void add_block(const wide_block<Format::SUB> & w, const uint8_t * rows, int64_t row_bytes, __m512 (*acc)[2]) {
    constexpr int SUB = Format::SUB, OFFSET_BITS = Format::OFFSET_BITS;
    const auto    row = [=](int64_t r) -> const row_block<Format> & {
        return *reinterpret_cast<const row_block<Format> *>(rows + r * row_bytes);
    };
    __m512i sums[N];
    for (int64_t r = 0; r < N; ++r) {
        sums[r] = _mm512_setzero_si512();
    }
    for (int sub = 0; sub < QK_K / SUB; ++sub) {
        __m512i a[N];
        for (int64_t r = 0; r < N; ++r) {
            a[r] = OFFSET_BITS > 0 ? for_all(row(r).sums + sub) : _mm512_setzero_si512();
        }
        for (int at = SUB / 4 * sub; at < SUB / 4 * (sub + 1); ++at) {
            for (int64_t r = 0; r < N; ++r) {
                a[r] = _mm512_dpbusd_epi32(a[r], w.q[at], for_all(row(r).qs + 4 * at));
            }
        }
        for (int64_t r = 0; r < N; ++r) {
            sums[r] = _mm512_add_epi32(sums[r], _mm512_mullo_epi32(a[r], w.scale[sub]));
        }
    }
    for (int64_t r = 0; r < N; ++r) {
        const __m512 d = _mm512_set1_ps(row(r).d);
        if constexpr (OFFSET_BITS == 0) {
            __m512i mins = _mm512_setzero_si512();
            for (int i = 0; i < QK_K / SUB / 2; ++i) {
                mins = _mm512_dpwssd_epi32(mins, w.min[i], for_all(row(r).sums + 2 * i));
            }
            acc[r][1] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(mins), _mm512_mul_ps(w.dmin, d), acc[r][1]);
        }
        acc[r][0] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[r]), _mm512_mul_ps(w.d, d), acc[r][0]);
    }
}

// Does so for n_rows rows.
template <class Format>
void add_block_to(const wide_block<Format::SUB> & w, const uint8_t * rows, int64_t row_bytes, int64_t n_rows,
                  __m512 (*acc)[2]) {
    static_assert(N_TOGETHER == 8, "");
    constexpr decltype(&add_block<Format, 1>) add[] = {
        add_block<Format, 1>, add_block<Format, 2>, add_block<Format, 3>, add_block<Format, 4>,
        add_block<Format, 5>, add_block<Format, 6>, add_block<Format, 7>, add_block<Format, 8>,
    };
    for (int64_t r = 0; r < n_rows; r += N_TOGETHER) {
        add[std::min(n_rows - r, N_TOGETHER) - 1](w, rows + r * row_bytes, row_bytes, acc + r);
    }
}

// Multiplies sixteen channels by all rows: of out[r * ldo + channel], the channels of `wanted` are written.
template <class Channels>
AVX512 void compute_wide(const Channels & channels, int64_t nb, const uint8_t * rows, int64_t n_rows, float * out,
                         int64_t ldo, __mmask16 wanted) {
    using format = typename Channels::format;
    using block  = row_block<format>;

    const int64_t row_bytes = nb * static_cast<int64_t>(sizeof(block));
    for (int64_t first = 0; first < n_rows; first += ROWS_TOGETHER_WIDE) {
        const int64_t   n   = std::min(n_rows - first, ROWS_TOGETHER_WIDE);
        const uint8_t * row = rows + first * row_bytes;
        Channels        w   = channels;
        __m512          acc[ROWS_TOGETHER_WIDE][2];
        for (int64_t r = 0; r < n; ++r) {
            acc[r][0] = acc[r][1] = _mm512_setzero_ps();
        }
        for (int64_t b = 0; b < nb; ++b, row += sizeof(block)) {
            wide_block<format::SUB> unpacked;
            w.unpack(unpacked);
            add_block_to<format>(unpacked, row, row_bytes, n, acc);
        }
        for (int64_t r = 0; r < n; ++r) {
            const __m512 x = _mm512_add_ps(acc[r][0], acc[r][1]);
            _mm512_mask_storeu_ps(out + (first + r) * ldo, wanted, in_order(x));
        }
    }
}

template <class Format>
void compute(const uint8_t * weights, int64_t k, const uint8_t * rows, int64_t n_rows, int64_t first, int64_t last,
             float * out, int64_t ldo) {
    const int64_t nb = k / QK_K;
    for (int64_t channel = first; channel < last; channel += 16) {
        mapped_wide<Format> w;
        for (int64_t i = 0; i < 16; ++i) { // filled up with the last channel
            w.w[i] = weights + std::min(channel + i, last - 1) * nb * Format::SIZE;
        }
        w.next          = weights + (channel + 16) * nb * Format::SIZE;
        const int64_t n = std::min<int64_t>(last - channel, 16);
        compute_wide(w, nb, rows, n_rows, out + channel, ldo, static_cast<__mmask16>((1 << n) - 1));
    }
}

template <class Format>
void compute_repacked(const uint8_t * weights, int64_t k, const uint8_t * rows, int64_t n_rows, int64_t first,
                      int64_t last, float * out, int64_t ldo) {
    using octet      = typename repacked_wide<Format>::octet;
    const int64_t nb = k / QK_K;
    if (n_rows <= FEW_ROWS) {
        for (int64_t group = first; group < last; ++group) {
            const avx512::octet<Format> w{ { { weights + group * nb * octet::SIZE } } };
            compute_octet(w, nb, rows, n_rows, out + 8 * group, ldo);
        }
        return;
    }
    for (int64_t group = first; group < last; group += 2) {
        const uint8_t *             low  = weights + group * nb * octet::SIZE;
        const bool                  both = group + 1 < last; // otherwise the second octet is the first once more
        const repacked_wide<Format> w{ { low }, { both ? low + nb * octet::SIZE : low } };
        compute_wide(w, nb, rows, n_rows, out + 8 * group, ldo, both ? 0xffff : 0xff);
    }
}

} // namespace eagle3::kernels::avx512
#endif
