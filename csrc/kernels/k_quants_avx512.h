// The products of mapped K-quants with AVX-512-VNNI: sixteen channels at a time, a channel per lane. A block of them is
// unpacked once, into a core's first cache, and then multiplied by all rows. A block's sums are the same integers as
// with AVX2, added up block after block in the same order, so that the results are the same bits.
#pragma once

#include "kernels/avx512.h"
#include "kernels/k_channels_avx512.h"
#include "kernels/k_octets_avx512.h"
#include "kernels/k_quants.h"
#include "kernels/k_row_avx512.h"

#if defined(__x86_64__)

#include <algorithm>
#include <type_traits>

namespace eagle3::kernels::avx512 {

constexpr int64_t N_TOGETHER = 8; // rows whose sums stay in registers

AVX512_INLINE __m512i for_all(const void * four_bytes) {
    return _mm512_set1_epi32(avx2::read<int32_t>(four_bytes));
}

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
template <class Format>
AVX512 void compute_channels(const mapped_channels<Format> & channels, int64_t nb, const uint8_t * rows, int64_t n_rows,
                             float * out, int64_t ldo, __mmask16 wanted) {
    using block = row_block<Format>;

    if constexpr (std::is_same_v<Format, k_quads::q6_K>) {
        if (n_rows == 1) {
            _mm512_mask_storeu_ps(out, wanted, multiply_row(channels, nb, reinterpret_cast<const block *>(rows)));
            return;
        }
    }
    const int64_t row_bytes = nb * static_cast<int64_t>(sizeof(block));
    for (int64_t first = 0; first < n_rows; first += ROWS_TOGETHER_WIDE) {
        const int64_t           n   = std::min(n_rows - first, ROWS_TOGETHER_WIDE);
        const uint8_t *         row = rows + first * row_bytes;
        mapped_channels<Format> w   = channels;
        __m512                  acc[ROWS_TOGETHER_WIDE][2];
        for (int64_t r = 0; r < n; ++r) {
            acc[r][0] = acc[r][1] = _mm512_setzero_ps();
        }
        for (int64_t b = 0; b < nb; ++b, row += sizeof(block)) {
            const uint8_t *         after = w.next + 16 * Format::SIZE;
            wide_block<Format::SUB> unpacked;
            read(w, unpacked);
            unpack(w, unpacked.q);
            w.advance(after);
            add_block_to<Format>(unpacked, row, row_bytes, n, acc);
        }
        for (int64_t r = 0; r < n; ++r) {
            _mm512_mask_storeu_ps(out + (first + r) * ldo, wanted, _mm512_add_ps(acc[r][0], acc[r][1]));
        }
    }
}

template <class Format>
void compute(const uint8_t * weights, int64_t k, const uint8_t * rows, int64_t n_rows, int64_t first, int64_t last,
             float * out, int64_t ldo) {
    const int64_t nb = k / QK_K;
    for (int64_t channel = first; channel < last; channel += 16) {
        mapped_channels<Format> w;
        for (int64_t i = 0; i < 16; ++i) { // filled up with the last channel
            w.w[i] = weights + std::min(channel + i, last - 1) * nb * Format::SIZE;
        }
        w.next          = weights + (channel + 16) * nb * Format::SIZE;
        const int64_t n = std::min<int64_t>(last - channel, 16);
        compute_channels(w, nb, rows, n_rows, out + channel, ldo, static_cast<__mmask16>((1 << n) - 1));
    }
}

template <class Format>
void compute_repacked(const uint8_t * weights, int64_t k, const uint8_t * rows, int64_t n_rows, int64_t first,
                      int64_t last, float * out, int64_t ldo) {
    const int64_t nb = k / QK_K;
    for (int64_t group = first; group < last; ++group) {
        using octet = avx512::octet<Format>;
        const octet w{ { { weights + group * nb * octet::quads::SIZE } } };
        for (int64_t r = 0; r < n_rows; r += ROWS_TOGETHER_WIDE) {
            compute_octet(w, nb, rows + r * nb * sizeof(row_block<Format>), std::min(n_rows - r, ROWS_TOGETHER_WIDE),
                          out + r * ldo + 8 * group, ldo);
        }
    }
}

} // namespace eagle3::kernels::avx512
#endif
