// The products of blocks_avx2.h with AVX-512-VNNI: sixteen channels at a time, a channel per lane. A channel's sums are
// the same integers as there, added up in the same order, so that the results are the same bits.
#pragma once

#include "kernels/avx512.h"
#include "kernels/blocks_avx2.h"

#if defined(__x86_64__)

namespace eagle3::kernels::avx512 {

using avx2::channel_bytes;
using avx2::q8_row_size;
using avx2::q8_scales;
using avx2::q8_sums;
using avx2::QK;
using avx2::read;
using avx2::unpacked;

// 32 inputs of sixteen channels. Mapped weights: q[i] holds inputs 4 i to 4 i + 3 of the channels. Repacked weights
// (octets): q[i] holds inputs 8 i to 8 i + 7 of the first eight channels, and q[4 + i] those of the others.
struct wide_block {
    __m512i q[8];
    __m512  d; // scales of the channels, in the order of the sums
    __m512  d_high;
    __m512  m;

    // a format may keep these from one block to the next
    __m512  super_d         = {};
    __m512i super_scales[2] = {};
};

// Octets: dot returns sixteen channels in the order that in_order undoes. This makes it.
AVX512_INLINE __m512 as_summed(__m512 v) {
    return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15), v);
}

// Unpacks block b of two octets.
template <class format>
AVX512_INLINE void unpack_octets(const uint8_t * low, const uint8_t * high, int64_t b, wide_block & w) {
    const uint8_t * blocks[] = { low + b * 8 * format::block_bytes, high + b * 8 * format::block_bytes };
    const __m512i   mask     = _mm512_set1_epi8(15);
    for (int octet = 0; octet < 2; ++octet) {
        for (int i = 0; i < 2; ++i) { // byte 64 i + 8 c holds inputs 8 i and 16 + 8 i of channel c
            const __m512i both     = _mm512_xor_si512(load512(blocks[octet] + format::values_at + 64 * i),
                                                      _mm512_set1_epi8(static_cast<char>(format::flip)));
            w.q[4 * octet + i]     = _mm512_and_si512(both, mask);
            w.q[4 * octet + 2 + i] = _mm512_and_si512(_mm512_srli_epi16(both, 4), mask);
        }
    }
    if constexpr (format::has_table) {
        const __m512i table = _mm512_broadcast_i32x4(format::table());
        for (__m512i & q : w.q) {
            q = _mm512_shuffle_epi8(table, q);
        }
    }
    w.d = as_summed(join(format::scales(blocks[0]), format::scales(blocks[1])));
}

// The bits 4 i to 4 i + 3 of each channel, as masks of its four bytes in a vector.
AVX512_INLINE __mmask64 mask_of_bits(__m512i bits, int i) {
    const __m512i first = _mm512_broadcast_i32x4(_mm_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c));
    const __m512i byte  = _mm512_shuffle_epi8(bits, _mm512_add_epi8(first, _mm512_set1_epi8(static_cast<char>(i / 2))));
    return _mm512_test_epi8_mask(byte, _mm512_set1_epi32(i % 2 ? static_cast<int>(0x80402010) : 0x08040201));
}

// Negates the values whose bit is set in the channels' `signs`.
AVX512_INLINE void negate(__m512i signs, wide_block & w) {
    for (int i = 0; i < 8; ++i) {
        w.q[i] = _mm512_mask_sub_epi8(w.q[i], mask_of_bits(signs, i), _mm512_setzero_si512(), w.q[i]);
    }
}

// Loads 16 bytes of each of sixteen channels: v[i] gets bytes 4 i to 4 i + 3.
AVX512_INLINE void load_transposed(const uint8_t * p, size_t stride, __m512i * v) {
    for (int i = 0; i < 4; ++i) {
        v[i] = _mm512_castsi128_si512(avx2::load128(p + i * stride));
        v[i] = _mm512_inserti32x4(v[i], avx2::load128(p + (i + 4) * stride), 1);
        v[i] = _mm512_inserti32x4(v[i], avx2::load128(p + (i + 8) * stride), 2);
        v[i] = _mm512_inserti32x4(v[i], avx2::load128(p + (i + 12) * stride), 3);
    }
    transpose_dwords(v[0], v[1], v[2], v[3]);
}

// Loads 16 bytes of each, whose low nibbles are inputs 0 to 15 and high nibbles 16 to 31.
AVX512_INLINE void load_nibbles(const uint8_t * p, size_t stride, wide_block & w) {
    __m512i v[4];
    load_transposed(p, stride, v);
    for (int i = 0; i < 4; ++i) {
        w.q[i]     = low_bits(v[i], 0, 15);
        w.q[4 + i] = low_bits(v[i], 4, 15);
    }
}

AVX512_INLINE __m512i load_dwords(const uint8_t * p, size_t stride) {
    return join(avx2::load_dwords(p, stride), avx2::load_dwords(p + 8 * stride, stride));
}

// Loads the half floats with which blocks begin.
AVX512_INLINE __m512 load_halves(const uint8_t * p, size_t stride) {
    return floats(load_dwords(p, stride));
}

AVX512_INLINE void load_scale_and_min(const uint8_t * p, size_t stride, wide_block & w) {
    const __m512i both = load_dwords(p, stride);
    w.d                = floats(both);
    w.m                = floats(_mm512_srli_epi32(both, 16));
}

// Replaces indices below 16 by a table's values.
AVX512_INLINE void look_up(__m128i table, wide_block & w) {
    for (__m512i & q : w.q) {
        q = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), q);
    }
}

// Unpacks block b of sixteen mapped channels, eight at a time.
template <class format>
AVX512_INLINE void unpack_mapped(const uint8_t * p, int64_t b, size_t stride, unpacked & low, unpacked & high,
                                 wide_block & w) {
    if constexpr (format::has_wide) {
        return format::unpack(p, b, stride, w);
    }
    format::unpack(p, b, stride, low);
    format::unpack(p + 8 * stride, b, stride, high);
    for (int i = 0; i < 8; ++i) {
        w.q[i] = join(low.q[i], high.q[i]);
    }
    w.d = join(low.d, high.d);
    if constexpr (format::n_scales == 2) {
        w.d_high = join(low.d_high, high.d_high);
    }
    if constexpr (format::has_signs) {
        negate(join(low.signs, high.signs), w);
    }
    if constexpr (format::sums::has_min) {
        w.m = join(low.m, high.m);
    }
}

// The channels' sums, plus `offset` each, or those of half `part`.
template <class format>
AVX512_INLINE __m512i dot(const wide_block & w, const uint8_t * y, int32_t offset, int part) {
    if constexpr (format::n_channels == 8) {
        __m512i low  = _mm512_maskz_set1_epi32(0x5555, offset); // a channel has two lanes, of which one gets it
        __m512i high = low;
        for (int i = 0; i < 4; ++i) {
            const __m512i values = _mm512_set1_epi64(read<int64_t>(y + 8 * i));
            low                  = _mm512_dpbusd_epi32(low, w.q[i], values);
            high                 = _mm512_dpbusd_epi32(high, w.q[4 + i], values);
        }
        const __m512 a = _mm512_castsi512_ps(low), b = _mm512_castsi512_ps(high);
        return _mm512_add_epi32(_mm512_castps_si512(_mm512_shuffle_ps(a, b, 0x88)),
                                _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0xdd)));
    } else {
        __m512i       sum = _mm512_set1_epi32(offset);
        constexpr int n   = 8 / format::n_scales;
        for (int i = n * part; i < n * (part + 1); ++i) {
            sum = _mm512_dpbusd_epi32(sum, w.q[i], _mm512_set1_epi32(read<int32_t>(y + 4 * i)));
        }
        return sum;
    }
}

// Multiplies sixteen channels by up to ROWS_TOGETHER_WIDE rows. Mapped channels begin at `low`; octets are `low` and
// `high`.
template <class isa, class format>
AVX512 __attribute__((noinline)) void compute_group(const uint8_t * low, const uint8_t * high, size_t stride, int64_t k,
                                                    const uint8_t * rows, int64_t n_rows, __m512 * sums) {
    using row_sums              = avx2::sums_of<isa, format>;
    const size_t      row_bytes = q8_row_size<row_sums>(k);
    constexpr int64_t n_bytes   = 2 * avx2::step_bytes<format>;
    const auto *      next      = reinterpret_cast<const char *>(low) + k / QK * n_bytes;
    for (int64_t r = 0; r < n_rows; ++r) {
        sums[r] = _mm512_setzero_ps();
    }
    wide_block w;
    unpacked   halves[2];
    for (int64_t b = 0; b < k / QK; ++b) {
        for (int64_t i = 0; i < n_bytes; i += 64) { // into L2, as in blocks_avx2.h
            _mm_prefetch(next + b * n_bytes + i, _MM_HINT_T1);
        }
        if constexpr (format::n_channels == 8) {
            unpack_octets<format>(low, high, b, w);
        } else {
            unpack_mapped<format>(low, b, stride, halves[0], halves[1], w);
        }
        if constexpr (avx2::is_biased<isa, format>) {
            for (__m512i & q : w.q) {
                q = _mm512_xor_si512(q, _mm512_set1_epi8(static_cast<char>(0x80)));
            }
        }
        for (int64_t r = 0; r < n_rows; ++r) {
            const uint8_t * row  = rows + r * row_bytes;
            const uint8_t * kept = q8_sums(row, k) + 4 * row_sums::n_parts * b;
            const __m512    dy   = _mm512_set1_ps(q8_scales(row, k)[b]);
            for (int part = 0; part < format::n_scales; ++part) {
                const int32_t offset = row_sums::has_offset ? read<int32_t>(kept + 4 * part) : 0;
                const __m512i q      = dot<format>(w, row + QK * b, offset, part);
                const __m512  d      = _mm512_mul_ps(part ? w.d_high : w.d, dy);
                sums[r]              = _mm512_fmadd_ps(_mm512_cvtepi32_ps(q), d, sums[r]);
            }
            if constexpr (row_sums::has_min) {
                sums[r] = _mm512_fmadd_ps(w.m, _mm512_set1_ps(read<float>(kept)), sums[r]);
            }
        }
    }
}

template <class isa, class format>
AVX512 void compute_channels(const uint8_t * low, const uint8_t * high, size_t stride, int64_t k, const uint8_t * rows,
                             int64_t n_rows, float * out, int64_t ldo) {
    for (int64_t r0 = 0; r0 < n_rows; r0 += ROWS_TOGETHER_WIDE) {
        const int64_t n = std::min(n_rows - r0, ROWS_TOGETHER_WIDE);
        __m512        sums[ROWS_TOGETHER_WIDE];
        const size_t  row_bytes = q8_row_size<avx2::sums_of<isa, format>>(k);
        compute_group<isa, format>(low, high, stride, k, rows + r0 * row_bytes, n, sums);
        for (int64_t r = 0; r < n; ++r) {
            _mm512_storeu_ps(out + (r0 + r) * ldo, format::n_channels == 8 ? in_order(sums[r]) : sums[r]);
        }
    }
}

// Computes sixteen channels at a time, and those that are left as blocks_avx2.h does.
template <class isa, class format>
void compute_blocks(const uint8_t * weights, int64_t k, const uint8_t * rows, int64_t n_rows, int64_t first,
                    int64_t last, float * out, int64_t ldo) {
    const size_t      stride   = channel_bytes<format>(k);
    constexpr int64_t n_groups = format::n_channels == 8 ? 2 : 16, n_channels = format::n_channels == 8 ? 8 : 1;
    for (; first + n_groups <= last; first += n_groups) {
        const uint8_t * w = weights + first * n_channels * stride;
        compute_channels<isa, format>(w, w + 8 * stride, stride, k, rows, n_rows, out + n_channels * first, ldo);
    }
    if (first < last) {
        avx2::compute_blocks<isa, format>(weights, k, rows, n_rows, first, last, out, ldo);
    }
}

} // namespace eagle3::kernels::avx512
#endif
