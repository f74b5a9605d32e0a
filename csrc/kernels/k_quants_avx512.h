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
using row_block = in_lines<std::conditional_t<(Format::OFFSET_BITS > 0), block_q8_offset, block_q8<Format::SUB>>>;

// Unpacks a block, and goes on to the next one.
template <int SUB, class Channels>
AVX512_INLINE void unpack_next(Channels & w, wide_block<SUB> & block) {
    const uint8_t * after = w.next + 16 * Channels::SIZE;
    read(w, block);
    unpack(w, block.q);
    w.advance(after);
}

// Adds a block's product by a row to acc: scales' and mins' part. sums: of products, by channel.
template <class Format>
AVX512_INLINE void add_sums(const wide_block<Format::SUB> & w, const row_block<Format> & row, __m512i sums,
                            __m512 (&acc)[2]) {
    const __m512 d = _mm512_set1_ps(row.d);
    if constexpr (Format::OFFSET_BITS == 0) {
        __m512i mins = _mm512_setzero_si512();
        for (int i = 0; i < QK_K / Format::SUB / 2; ++i) {
            mins = _mm512_dpwssd_epi32(mins, w.min[i], for_all(row.sums + 2 * i));
        }
        acc[1] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(mins), _mm512_mul_ps(w.dmin, d), acc[1]);
    }
    acc[0] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), _mm512_mul_ps(w.d, d), acc[0]);
}

// Multiplies a block by N rows, and adds the products to acc.
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
        add_sums<Format>(w, row(r), sums[r], acc[r]);
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

// Adds up products of mapped channels. Of tiles there is another such class.
struct by_vectors {
    static constexpr int64_t N_ROWS = ROWS_TOGETHER_WIDE;

    // Multiplies sixteen channels by n rows, at most N_ROWS.
    template <class Format>
    AVX512 static void add_channels(mapped_channels<Format> w, int64_t nb, const uint8_t * rows, int64_t n,
                                    __m512 (*acc)[2]) {
        const int64_t row_bytes = row_block<Format>::row_bytes(nb);
        for (int64_t b = 0; b < nb; ++b, rows += sizeof(row_block<Format>)) {
            wide_block<Format::SUB> unpacked;
            unpack_next(w, unpacked);
            add_block_to<Format>(unpacked, rows, row_bytes, n, acc);
        }
    }
};

// Multiplies sixteen channels by all rows: of out[r * ldo + channel], the channels of `wanted` are written.
template <class Format, class Products, class Channels>
AVX512 void compute_channels(const Channels & w, int64_t nb, const uint8_t * rows, int64_t n_rows, float * out,
                             int64_t ldo, __mmask16 wanted) {
    using block = row_block<Format>;

    if constexpr (std::is_same_v<Channels, mapped_channels<k_quads::q6_K>>) {
        if (n_rows == 1) {
            _mm512_mask_storeu_ps(out, wanted, multiply_row(w, nb, reinterpret_cast<const block *>(rows)));
            return;
        }
    }
    constexpr int64_t N         = Products::N_ROWS;
    const int64_t     row_bytes = block::row_bytes(nb);
    for (int64_t first = 0; first < n_rows; first += N) {
        const int64_t n = std::min(n_rows - first, N);
        __m512        acc[N][2];
        for (int64_t r = 0; r < n; ++r) {
            acc[r][0] = acc[r][1] = _mm512_setzero_ps();
        }
        Products::template add_channels<Format>(w, nb, rows + first * row_bytes, n, acc);
        for (int64_t r = 0; r < n; ++r) {
            _mm512_mask_storeu_ps(out + (first + r) * ldo, wanted, _mm512_add_ps(acc[r][0], acc[r][1]));
        }
    }
}

template <class Format, class Products = by_vectors>
void compute(const uint8_t * weights, int64_t k, const uint8_t * rows, int64_t n_rows, int64_t first, int64_t last,
             float * out, int64_t ldo) {
    const int64_t nb = k / QK_K;
    for (int64_t channel = first; channel < last; channel += 16) {
        mapped_channels<Format> w;
        for (int64_t i = 0; i < 16; ++i) { // filled up with the last channel
            w.w[i] = weights + std::min(channel + i, last - 1) * nb * Format::SIZE;
        }
        w.next            = weights + (channel + 16) * nb * Format::SIZE;
        const auto wanted = static_cast<__mmask16>((1 << std::min<int64_t>(last - channel, 16)) - 1);
        compute_channels<Format, Products>(w, nb, rows, n_rows, out + channel, ldo, wanted);
    }
}

template <class Format>
octet<Format> octet_at(const uint8_t * weights, int64_t nb, int64_t group) {
    return { { { weights + group * nb * static_cast<int64_t>(octet<Format>::quads::SIZE) } } };
}

template <class Format>
void compute_repacked(const uint8_t * weights, int64_t k, const uint8_t * rows, int64_t n_rows, int64_t first,
                      int64_t last, float * out, int64_t ldo) {
    const int64_t nb = k / QK_K;
    for (int64_t group = first; group < last; ++group) {
        for (int64_t r = 0; r < n_rows; r += ROWS_TOGETHER_WIDE) {
            compute_octet(octet_at<Format>(weights, nb, group), nb, rows + r * row_block<Format>::row_bytes(nb),
                          std::min(n_rows - r, ROWS_TOGETHER_WIDE), out + r * ldo + 8 * group, ldo);
        }
    }
}

} // namespace eagle3::kernels::avx512
#endif
