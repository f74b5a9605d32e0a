// The products of K-quants by many rows with AMX: a tile has sixteen rows or sixteen channels, and two of them are
// multiplied at once. Weights times their scales are split into two bytes, so that a block's sums are the same integers
// as in k_quants_avx512.h, and the results are the same bits.
#pragma once

#include "kernels/k_quants_avx512.h"

#if defined(EAGLE3_AMX) // the assembler knows the instructions

namespace eagle3::kernels::avx512 {

constexpr int64_t N_TILED = 32; // rows that are multiplied together

// While one exists, this thread's tiles have sixteen rows of 64 bytes.
class tiles {
  public:
    tiles() {
        struct alignas(64) {
            uint8_t  palette = 1, start_row = 0, reserved[14] = {};
            uint16_t n_bytes[16] = { 64, 64, 64, 64, 64, 64, 64, 64 };
            uint8_t  n_rows[16]  = { 16, 16, 16, 16, 16, 16, 16, 16 };
        } config;
        asm volatile("ldtilecfg %0" ::"m"(config));
    }

    ~tiles() { asm volatile("tilerelease"); }

    tiles(const tiles &)             = delete;
    tiles & operator=(const tiles &) = delete;
};

// Multiplies 64 inputs of 32 rows by those of sixteen channels, and adds the products to tiles 0 to 3.
inline void add_tiles(const int8_t * x, int64_t row_bytes, const uint8_t * low, const int8_t * high) {
    asm volatile("tileloadd (%0,%2,1), %%tmm4\n\t"
                 "tileloadd (%3,%5,1), %%tmm6\n\t"
                 "tileloadd (%4,%5,1), %%tmm7\n\t"
                 "tdpbsud %%tmm6, %%tmm4, %%tmm0\n\t"
                 "tdpbssd %%tmm7, %%tmm4, %%tmm1\n\t"
                 "tileloadd (%1,%2,1), %%tmm5\n\t"
                 "tdpbsud %%tmm6, %%tmm5, %%tmm2\n\t"
                 "tdpbssd %%tmm7, %%tmm5, %%tmm3" ::"r"(x),
                 "r"(x + 16 * row_bytes), "r"(row_bytes), "r"(low), "r"(high), "r"(int64_t{ 64 })
                 : "memory");
}

inline void clear_tiles() {
    asm volatile("tilezero %%tmm0\n\ttilezero %%tmm1\n\ttilezero %%tmm2\n\ttilezero %%tmm3" ::);
}

// to[i]: tile i.
inline void store_tiles(int32_t (&to)[4][16][16]) {
    asm volatile("tilestored %%tmm0, (%0,%4,1)\n\t"
                 "tilestored %%tmm1, (%1,%4,1)\n\t"
                 "tilestored %%tmm2, (%2,%4,1)\n\t"
                 "tilestored %%tmm3, (%3,%4,1)" ::"r"(to[0]),
                 "r"(to[1]), "r"(to[2]), "r"(to[3]), "r"(int64_t{ 64 })
                 : "memory");
}

// Weights of sixteen channels times their scales: low + 256 high. A row has four inputs of each channel.
struct alignas(64) scaled_block {
    uint8_t low[QK_K / 4][64];
    int8_t  high[QK_K / 4][64];
};

template <class Format>
AVX512_INLINE void multiply_by_scales(const wide_block<Format::SUB> & w, scaled_block & to) {
    constexpr int N     = Format::SUB / 4;
    const __m512i first = _mm512_set1_epi16(0xff), second = _mm512_set1_epi16(static_cast<short>(0xff00));
    const __m512i offset = _mm512_set1_epi16(Format::OFFSET_BITS > 0 ? 1 << Format::OFFSET_BITS : 0);
    for (int sub = 0; sub < QK_K / Format::SUB; ++sub) {
        const __m512i word  = _mm512_and_si512(w.scale[sub], _mm512_set1_epi32(0xffff));
        const __m512i scale = _mm512_or_si512(word, _mm512_slli_epi32(word, 16));
        for (int i = N * sub; i < N * (sub + 1); ++i) {
            const __m512i a = _mm512_sub_epi16(_mm512_and_si512(w.q[i], first), offset);
            const __m512i b = _mm512_sub_epi16(_mm512_srli_epi16(w.q[i], 8), offset);
            const __m512i x = _mm512_mullo_epi16(a, scale), y = _mm512_mullo_epi16(b, scale);
            // x & first | y << 8, and y & second | x >> 8
            _mm512_store_si512(to.low[i], _mm512_ternarylogic_epi32(x, first, _mm512_slli_epi16(y, 8), 0xea));
            _mm512_store_si512(to.high[i], _mm512_ternarylogic_epi32(y, second, _mm512_srli_epi16(x, 8), 0xea));
        }
    }
}

// Sums of a block by 32 rows, split as the weights are.
struct alignas(64) tile_sums {
    int32_t of[4][16][16]; // low and high ones of the first sixteen rows, then of the others

    AVX512_INLINE __m512i row(int64_t r) const {
        return _mm512_add_epi32(load512(of[r / 16 * 2][r % 16]),
                                _mm512_slli_epi32(load512(of[r / 16 * 2 + 1][r % 16]), 8));
    }
};

// Multiplies a block by 32 rows of activations, of which the first one begins at x.
AVX512_INLINE void multiply_tiles(const int8_t * x, int64_t row_bytes, const scaled_block & w, tile_sums & sums) {
    clear_tiles();
    for (int i = 0; i < QK_K / 64; ++i) {
        add_tiles(x + 64 * i, row_bytes, w.low[16 * i], w.high[16 * i]);
    }
    store_tiles(sums.of);
}

// Two repacked octets as sixteen channels. `next`: what is prefetched into the second cache meanwhile.
template <class Format>
struct octet_pair {
    static constexpr size_t SIZE = Format::SIZE;

    octet<Format>   of[2];
    const uint8_t * next;

    AVX512_INLINE void advance(const uint8_t * after) {
        of[0].w.advance();
        of[1].w.advance();
        next = after;
    }
};

// Dwords 0, 2, 4 ... of both vectors, or 1, 3, 5 ...
AVX512_INLINE __m512i every_other(__m512i a, __m512i b, int first) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    return _mm512_permutex2var_epi32(a, _mm512_add_epi32(even, _mm512_set1_epi32(first)), b);
}

template <class Format>
AVX512_INLINE void read(octet_pair<Format> & w, wide_block<Format::SUB> & block) {
    constexpr int N = octet<Format>::N_SCALES;
    __m512i       scale[2][N], min[2][N];
    for (int k = 0; k < 2; ++k) {
        __m512 unused;
        w.of[k].scales(scale[k], min[k], unused);
    }
    for (int i = 0; i < 2 * N; ++i) {
        const __m512i two      = every_other(scale[0][i / 2], scale[1][i / 2], i % 2);
        block.scale[2 * i]     = _mm512_and_si512(two, _mm512_set1_epi32(0xffff));
        block.scale[2 * i + 1] = _mm512_srli_epi32(two, 16);
        block.min[i]           = every_other(min[0][i / 2], min[1][i / 2], i % 2);
    }
    const uint8_t * a = w.of[0].w.w;
    const uint8_t * b = w.of[1].w.w;
    block.d           = join(_mm256_cvtph_ps(k_quads::load16(a)), _mm256_cvtph_ps(k_quads::load16(b)));
    block.dmin        = join(_mm256_cvtph_ps(k_quads::load16(a + 16)), _mm256_cvtph_ps(k_quads::load16(b + 16)));
    block.dmin        = _mm512_xor_ps(block.dmin, _mm512_set1_ps(-0.0f));
    k_quads::prefetch(w.next, 16 * Format::SIZE);
}

template <int P, class Format>
AVX512_INLINE void unpack_quarter(const octet_pair<Format> & w, __m512i * q) {
    __m512i v[2][8];
    w.of[0].template unpack<P>(v[0]);
    w.of[1].template unpack<P>(v[1]);
    for (int i = 0; i < 8; ++i) {
        const int at = Format::SUB == 32 ? 16 * P + 2 * i : 32 * (P / 2) + 4 * (P % 2) + 8 * (i / 2) + 2 * (i % 2);
        q[at]        = every_other(v[0][i], v[1][i], 0);
        q[at + 1]    = every_other(v[0][i], v[1][i], 1);
    }
}

template <class Format>
AVX512_INLINE void unpack(const octet_pair<Format> & w, __m512i * q) {
    unpack_quarter<0>(w, q);
    unpack_quarter<1>(w, q);
    unpack_quarter<2>(w, q);
    unpack_quarter<3>(w, q);
}

// Adds up products by tiles, and by vectors those of the last rows.
struct by_tiles {
    static constexpr int64_t N_ROWS = ROWS_TILED;

    template <class Format, class Channels>
    AVX512 static void add_channels(Channels w, int64_t nb, const uint8_t * rows, int64_t n, __m512 (*acc)[2]) {
        const int64_t row_bytes = row_block<Format>::row_bytes(nb);
        const int64_t n_tiled   = n / N_TILED * N_TILED;
        for (int64_t b = 0; b < nb; ++b, rows += sizeof(row_block<Format>)) {
            wide_block<Format::SUB> block;
            scaled_block            scaled;
            unpack_next(w, block);
            multiply_by_scales<Format>(block, scaled);
            for (int64_t first = 0; first < n_tiled; first += N_TILED) {
                const uint8_t * row = rows + first * row_bytes;
                tile_sums       sums;
                multiply_tiles(reinterpret_cast<const int8_t *>(row), row_bytes, scaled, sums);
                for (int64_t r = 0; r < N_TILED; ++r, row += row_bytes) {
                    add_sums<Format>(block, *reinterpret_cast<const row_block<Format> *>(row), sums.row(r),
                                     acc[first + r]);
                }
            }
            add_block_to<Format>(block, rows + n_tiled * row_bytes, row_bytes, n - n_tiled, acc + n_tiled);
        }
    }
};

template <class Format>
void compute_tiled(const uint8_t * weights, int64_t k, const uint8_t * rows, int64_t n_rows, int64_t first,
                   int64_t last, float * out, int64_t ldo) {
    if (n_rows < N_TILED) {
        return compute<Format>(weights, k, rows, n_rows, first, last, out, ldo);
    }
    const tiles configured;
    compute<Format, by_tiles>(weights, k, rows, n_rows, first, last, out, ldo);
}

template <class Format>
void compute_repacked_tiled(const uint8_t * weights, int64_t k, const uint8_t * rows, int64_t n_rows, int64_t first,
                            int64_t last, float * out, int64_t ldo) {
    const int64_t nb = k / QK_K;
    if (n_rows >= N_TILED) {
        const tiles configured;
        for (; first + 2 <= last; first += 2) {
            const octet<Format>      w[] = { octet_at<Format>(weights, nb, first),
                                             octet_at<Format>(weights, nb, first + 1) };
            const octet_pair<Format> pair{ { w[0], w[1] }, octet_at<Format>(weights, nb, first + 2).w.w };
            compute_channels<Format, by_tiles>(pair, nb, rows, n_rows, out + 8 * first, ldo, 0xffff);
        }
    }
    compute_repacked<Format>(weights, k, rows, n_rows, first, last, out, ldo);
}

} // namespace eagle3::kernels::avx512
#endif
