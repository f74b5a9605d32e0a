// Multiplies weights in blocks of 32 inputs, each with a scale, by rows in Q8: eight channels at a time, a channel per
// lane. A format unpacks its blocks to 32 int8 values of eight channels, once for all rows. Repacked weights lie in
// groups of eight channels (octets) or of four (quads, on ARM).
#pragma once

#include "kernels/instruction_sets.h"
#include "kernels/kernel.h"
#include "kernels/q8_rows_avx2.h"

#ifdef EAGLE3_HAS_KERNELS

#include <algorithm>
#include <type_traits>

namespace eagle3::kernels::avx2 {

// 32 inputs of eight channels. In fours: q[i] holds inputs 4 i to 4 i + 3 of the channels in order. In eights: q[i]
// holds inputs 8 i to 8 i + 7 of channels 0 to 3, and q[4 + i] those of channels 4 to 7.
struct unpacked {
    __m256i q[8];
    __m256  d;      // scales of the channels, in order
    __m256  d_high; // those of inputs 16 to 31, if these have their own
    __m256  m;      // minimums of the channels, if the format has them
    __m256i signs;  // a bit for each input, which is then to be negated, if the format has them

    // a format may keep these from one block to the next
    __m256  super_d         = {};
    __m256i super_scales[2] = {};
    __m256i packed[8]       = {};
};

// What a format has whose weights lie as in the file, by default in blocks of 32 inputs with one scale.
template <int64_t BYTES, int64_t INPUTS = QK, int SCALES = 1>
struct mapped_blocks {
    static constexpr int64_t block_bytes  = BYTES;
    static constexpr int64_t block_inputs = INPUTS;
    static constexpr int     n_scales     = SCALES;
    static constexpr int64_t n_channels   = 1;
    static constexpr int64_t n_together   = 0;
    static constexpr bool    eights       = false;
    static constexpr bool    has_signs    = false;
    static constexpr bool    has_wide     = false;
};

// A format has
//   block_bytes      bytes of one channel's block
//   block_inputs     its inputs: 32, or a multiple
//   n_scales         scales of 32 inputs: 1, or 2 where 16 have one (not in repacked layouts)
//   n_channels       channels of a group: 1 as the file has them, 8 or 4 in ggml's repacked layouts
//   n_together       in repacked layouts, the bytes of a channel that lie together
//   eights           whether vectors are in eights
//   has_signs        whether values are to be negated where a sign is set (not in eights)
//   has_wide         whether it unpacks sixteen channels, too
//   is_signed        whether values are int8, or uint8
//   largest          the greatest magnitude of a value
//   sums             what rows keep of their blocks' sums
// and
//   unpack(p, b, stride, w)   unpacks inputs 32 b to 32 b + 31 of eight channels, or of two groups of four, `stride`
//                             bytes apart; or of sixteen, if w is avx512::wide_block
// or, in octets of nibbles,
//   values_at, flip  where the nibbles begin in a block of eight channels, and which bits of each byte are inverted
//   has_table, table()   the int8 or uint8 value that each nibble stands for
//   scales(p)        the scales of a block's channels

// VNNI multiplies uint8 by int8. So int8 values are read as uint8, which makes them 128 more, and 128 times the sum of
// the row's values is subtracted, as for formats that have an offset.
template <class isa, class format>
constexpr bool is_biased = isa::has_vnni && !isa::has_signed && format::is_signed;

template <class isa, class format>
using sums_of = std::conditional_t<is_biased<isa, format>, offset_sums<128, format::n_scales>, typename format::sums>;

// Bytes of a channel of k inputs, and those of eight channels that a step of 32 inputs goes on, on average.
template <class format>
constexpr size_t channel_bytes(int64_t k) {
    return k / format::block_inputs * format::block_bytes;
}

template <class format>
constexpr int64_t step_bytes = 8 * format::block_bytes * QK / format::block_inputs;

// The row's values that q[i] is multiplied by.
template <class format>
AVX2_INLINE __m256i values_for(const uint8_t * y, int i) {
    return format::eights ? _mm256_set1_epi64x(read<int64_t>(y + 8 * i)) : _mm256_set1_epi32(read<int32_t>(y + 4 * i));
}

// Multiplies n vectors of values by the row's values, and returns the sums as int32. AVX2 adds up products in 16 bits
// first, as many as cannot overflow.
template <class isa, class format, int n>
AVX2_INLINE __m256i multiply(const __m256i * q, const uint8_t * y) {
    __m256i sum = _mm256_setzero_si256();
    if constexpr (isa::has_vnni) {
        if constexpr (isa::has_lanes && !format::eights) {
            return isa::template add_fours<n>(q, y);
        }
        for (int i = 0; i < n; ++i) {
            sum = isa::add_bytes(sum, q[i], values_for<format>(y, i));
        }
        return sum;
    }
    constexpr int n_fit      = 32767 / (2 * 127 * format::largest);
    constexpr int n_together = n_fit >= n ? n : n_fit >= 4 ? 4 : n_fit >= 2 ? 2 : 1;
    static_assert(n_fit > 0 && n % n_together == 0, "");

    const __m256i ones = _mm256_set1_epi16(1);
    for (int i = 0; i < n; i += n_together) {
        __m256i part = _mm256_setzero_si256();
        for (int j = i; j < i + n_together; ++j) {
            part =
                _mm256_add_epi16(part, isa::template multiply_bytes<format::is_signed>(q[j], values_for<format>(y, j)));
        }
        sum = isa::add_words(sum, part, ones);
    }
    return sum;
}

// The eight channels' sums. Those of eights are in another order, which in_order undoes.
template <class isa, class format>
AVX2_INLINE __m256i dot(const unpacked & w, const uint8_t * y) {
    if constexpr (format::eights) {
        return isa::fold(multiply<isa, format, 4>(w.q, y), multiply<isa, format, 4>(w.q + 4, y));
    } else {
        return multiply<isa, format, 8>(w.q, y);
    }
}

// Mask i of a channel has four bytes, which are all ones where the channel's bits 4 i to 4 i + 3 are set.
AVX2_INLINE void masks_of_bits(__m256i bits, __m256i (&masks)[8]) {
    const __m256i bit[] = { _mm256_set1_epi32(0x08040201), _mm256_set1_epi32(static_cast<int>(0x80402010)) };
    for (int i = 0; i < 8; ++i) {
        // byte i / 2 of each channel, four times
        const __m256i places = _mm256_add_epi8(
            _mm256_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c, 0, 0x04040404, 0x08080808, 0x0c0c0c0c),
            _mm256_set1_epi8(static_cast<char>(i / 2)));
        const __m256i byte = _mm256_shuffle_epi8(bits, places);
        masks[i]           = _mm256_cmpeq_epi8(_mm256_and_si256(byte, bit[i % 2]), bit[i % 2]);
    }
}

// Transposes 16 bytes of each of eight channels, where v[i] has those of channels i and 4 + i: then it has bytes 4 i to
// 4 i + 3 of each.
AVX2_INLINE void transpose(__m256i * v) {
    const __m256i c01 = _mm256_unpacklo_epi32(v[0], v[1]);
    const __m256i c23 = _mm256_unpacklo_epi32(v[2], v[3]);
    const __m256i h01 = _mm256_unpackhi_epi32(v[0], v[1]);
    const __m256i h23 = _mm256_unpackhi_epi32(v[2], v[3]);
    v[0]              = _mm256_unpacklo_epi64(c01, c23);
    v[1]              = _mm256_unpackhi_epi64(c01, c23);
    v[2]              = _mm256_unpacklo_epi64(h01, h23);
    v[3]              = _mm256_unpackhi_epi64(h01, h23);
}

// Negates the values whose bit is set.
AVX2_INLINE void negate(__m256i bits, __m256i * q) {
    __m256i set[8];
    masks_of_bits(bits, set);
    for (int i = 0; i < 8; ++i) {
        q[i] = _mm256_sub_epi8(_mm256_xor_si256(q[i], set[i]), set[i]);
    }
}

// Replaces indices below 16 by a table's values.
AVX2_INLINE void look_up(__m128i table, __m256i * q) {
    const __m256i both = _mm256_broadcastsi128_si256(table);
    for (int i = 0; i < 8; ++i) {
        q[i] = _mm256_shuffle_epi8(both, q[i]);
    }
}

// Unpacks block b of an octet. Its byte 64 i + 8 c holds inputs 8 i and 16 + 8 i of channel c.
template <class format>
AVX2_INLINE void unpack_octet(const uint8_t * p, int64_t b, unpacked & w) {
    const __m256i flip = _mm256_set1_epi8(static_cast<char>(format::flip));
    const __m256i low  = _mm256_set1_epi8(15);
    p += b * 8 * format::block_bytes;
    w.d = format::scales(p);
    for (int i = 0; i < 4; ++i) {
        const __m256i both  = _mm256_xor_si256(load256(p + format::values_at + 32 * i), flip);
        const int     place = i / 2 + 4 * (i % 2);
        w.q[place]          = _mm256_and_si256(both, low);
        w.q[place + 2]      = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
    }
    if constexpr (format::has_table) {
        look_up(format::table(), w.q);
    }
}

template <class isa, class format>
AVX2_INLINE __m256 in_order(__m256 v) {
    return format::eights ? isa::unfold(v) : v;
}

// Adds a block's products with a row, whose integer sums are q, to the row's sums; or those of its half `part`.
template <class isa, class format>
AVX2_INLINE void add_block(const unpacked & w, __m256 scales, const uint8_t * row, int64_t k, int64_t b, __m256i q,
                           __m256 & sum, int part = 0) {
    using row_sums       = sums_of<isa, format>;
    const uint8_t * kept = q8_sums(row, k) + 4 * (row_sums::n_parts * b + part);
    if constexpr (row_sums::has_offset) {
        q = _mm256_add_epi32(q, _mm256_set1_epi32(read<int32_t>(kept)));
    }
    const __m256 d = _mm256_mul_ps(scales, _mm256_set1_ps(q8_scales(row, k)[b]));
    sum            = _mm256_fmadd_ps(_mm256_cvtepi32_ps(q), d, sum);
    if constexpr (row_sums::has_min) {
        sum = _mm256_fmadd_ps(w.m, _mm256_set1_ps(read<float>(kept)), sum);
    }
}

// Multiplies pairs of rows by a block if the instruction set can; returns the number of rows multiplied.
template <class isa, class format>
AVX2_INLINE int64_t add_block_to_pairs(const unpacked & w, __m256 scales, const uint8_t * rows, int64_t n_rows,
                                       int64_t k, int64_t b, __m256 * sums) {
    int64_t r = 0;
    if constexpr (isa::has_matrices && format::n_scales == 1) {
        const size_t row_bytes = q8_row_size<sums_of<isa, format>>(k);
        __m256i      eights[8];
        if constexpr (format::eights) {
            std::copy(w.q, w.q + 8, eights);
        } else if (n_rows > 1) {
            isa::to_eights(w.q, eights);
        }
        for (; r + 2 <= n_rows; r += 2) {
            const uint8_t * first  = rows + r * row_bytes;
            const uint8_t * second = first + row_bytes;
            __m256i         a, c;
            isa::multiply_rows(eights, first + QK * b, second + QK * b, a, c);
            add_block<isa, format>(w, scales, first, k, b, a, sums[r]);
            add_block<isa, format>(w, scales, second, k, b, c, sums[r + 1]);
        }
    }
    return r;
}

// Multiplies eight channels, `stride` bytes apart, by up to ROWS_TOGETHER rows. Not inlined: if GCC sees that nothing
// else reads the sums, it computes two blocks at a time, which do not fit into the registers.
template <class isa, class format>
AVX2 __attribute__((noinline)) void compute_group(const uint8_t * weights, size_t stride, int64_t k,
                                                  const uint8_t * rows, int64_t n_rows, __m256 * sums) {
    constexpr int64_t n_bytes   = step_bytes<format>;
    const size_t      row_bytes = q8_row_size<sums_of<isa, format>>(k);
    const auto *      next      = reinterpret_cast<const char *>(weights) + k / QK * n_bytes;
    for (int64_t r = 0; r < n_rows; ++r) {
        sums[r] = _mm256_setzero_ps();
    }
    unpacked w;
    for (int64_t b = 0; b < k / QK; ++b) {
        // the processor does not prefetch eight short streams by itself; after the last weights nothing is read
        for (int64_t i = 0; i < n_bytes; i += 64) {
            _mm_prefetch(next + b * n_bytes + i, _MM_HINT_T0);
        }
        if constexpr (format::n_channels == 8) {
            unpack_octet<format>(weights, b, w);
        } else {
            format::unpack(weights, b, stride, w);
        }
        if constexpr (format::has_signs) {
            negate(w.signs, w.q);
        }
        if constexpr (is_biased<isa, format>) {
            for (__m256i & q : w.q) {
                q = _mm256_xor_si256(q, _mm256_set1_epi8(static_cast<char>(0x80)));
            }
        }
        const __m256 scales = in_order<isa, format>(w.d);
        for (int64_t r = add_block_to_pairs<isa, format>(w, scales, rows, n_rows, k, b, sums); r < n_rows; ++r) {
            const uint8_t * row = rows + r * row_bytes;
            const uint8_t * y   = row + QK * b;
            if constexpr (format::n_scales == 1) {
                add_block<isa, format>(w, scales, row, k, b, dot<isa, format>(w, y), sums[r]);
            } else {
                add_block<isa, format>(w, w.d, row, k, b, multiply<isa, format, 4>(w.q, y), sums[r]);
                add_block<isa, format>(w, w.d_high, row, k, b, multiply<isa, format, 4>(w.q + 4, y + 16), sums[r], 1);
            }
        }
    }
}

// Multiplies channels [first, last) of eight by all rows. out: where channel 0's results go.
template <class isa, class format>
AVX2 void compute_channels(const uint8_t * weights, size_t stride, int64_t k, const uint8_t * rows, int64_t n_rows,
                           int64_t first, int64_t last, float * out, int64_t ldo) {
    for (int64_t r0 = 0; r0 < n_rows; r0 += ROWS_TOGETHER) {
        const int64_t n = std::min(n_rows - r0, ROWS_TOGETHER);
        __m256        sums[ROWS_TOGETHER];
        compute_group<isa, format>(weights, stride, k, rows + r0 * q8_row_size<sums_of<isa, format>>(k), n, sums);
        for (int64_t r = 0; r < n; ++r) {
            alignas(32) float s[8];
            _mm256_store_ps(s, in_order<isa, format>(sums[r]));
            std::copy(s + first, s + last, out + (r0 + r) * ldo + first);
        }
    }
}

template <class isa, class format>
void compute_blocks(const uint8_t * weights, int64_t k, const uint8_t * rows, int64_t n_rows, int64_t first,
                    int64_t last, float * out, int64_t ldo) {
    const size_t stride = channel_bytes<format>(k);
    if constexpr (format::n_channels == 8) {
        for (int64_t group = first; group < last; ++group) {
            compute_channels<isa, format>(weights + group * 8 * stride, 0, k, rows, n_rows, 0, 8, out + 8 * group, ldo);
        }
    } else if constexpr (format::n_channels == 4) {
        for (int64_t group = first; group < last; group += 2) { // two groups, or the last one twice
            const bool are_two = group + 2 <= last;
            compute_channels<isa, format>(weights + group * 4 * stride, are_two ? 4 * stride : 0, k, rows, n_rows, 0,
                                          are_two ? 8 : 4, out + 4 * group, ldo);
        }
    } else {
        for (int64_t c = first; c < last; c += 8) {
            if (c + 8 <= last) {
                compute_channels<isa, format>(weights + c * stride, stride, k, rows, n_rows, 0, 8, out + c, ldo);
            } else if (last >= 8) { // the last eight, some of which are computed already
                compute_channels<isa, format>(weights + (last - 8) * stride, stride, k, rows, n_rows, c - (last - 8), 8,
                                              out + last - 8, ldo);
            } else { // fewer than eight in all: one at a time, in all lanes
                for (int64_t i = c; i < last; ++i) {
                    compute_channels<isa, format>(weights + i * stride, 0, k, rows, n_rows, 0, 1, out + i, ldo);
                }
            }
        }
    }
}

// Functions that formats share. The first four of eight channels are in the low half of a vector, the others in the
// high half.

AVX2_INLINE __m256i load_two(const uint8_t * low, const uint8_t * high) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load128(low)), load128(high), 1);
}

// Loads 16 bytes of each of eight channels, and transposes them.
AVX2_INLINE void load_transposed(const uint8_t * p, size_t stride, __m256i * v) {
    for (int i = 0; i < 4; ++i) {
        v[i] = load_two(p + i * stride, p + (4 + i) * stride);
    }
    transpose(v);
}

// Splits nibbles: q[i] gets the low ones of v[i], q[i + 4] the high ones.
AVX2_INLINE void split_nibbles(const __m256i * v, __m256i * q) {
    const __m256i low = _mm256_set1_epi8(15);
    for (int i = 0; i < 4; ++i) {
        q[i]     = _mm256_and_si256(v[i], low);
        q[i + 4] = _mm256_and_si256(_mm256_srli_epi16(v[i], 4), low);
    }
}

// Loads 16 bytes of each of eight channels, whose low nibbles are inputs 0 to 15 and high nibbles 16 to 31.
AVX2_INLINE void load_nibbles(const uint8_t * p, size_t stride, __m256i * q) {
    __m256i v[4];
    load_transposed(p, stride, v);
    split_nibbles(v, q);
}

// Loads a half float of each of eight channels.
AVX2_INLINE __m256 load_halves(const uint8_t * p, size_t stride) {
    const auto at = [=](int c) {
        return read<int16_t>(p + c * stride);
    };
    return _mm256_cvtph_ps(_mm_setr_epi16(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7)));
}

// Values of memory as a vector. On x86 a load that is repeated in all lanes takes no shuffle, as an insertion does.
AVX2_INLINE __m256i join(int64_t a, int64_t b, int64_t c, int64_t d) {
#if defined(__x86_64__)
    const __m256i low  = _mm256_blend_epi32(_mm256_set1_epi64x(a), _mm256_set1_epi64x(b), 0x0c);
    const __m256i high = _mm256_blend_epi32(_mm256_set1_epi64x(c), _mm256_set1_epi64x(d), 0xc0);
    return _mm256_blend_epi32(low, high, 0xf0);
#else
    return _mm256_setr_epi64x(a, b, c, d);
#endif
}

AVX2_INLINE __m256i join(int32_t a, int32_t b, int32_t c, int32_t d, int32_t e, int32_t f, int32_t g, int32_t h) {
#if defined(__x86_64__)
    const __m256i ab = _mm256_blend_epi32(_mm256_set1_epi32(a), _mm256_set1_epi32(b), 0x02);
    const __m256i cd = _mm256_blend_epi32(_mm256_set1_epi32(c), _mm256_set1_epi32(d), 0x08);
    const __m256i ef = _mm256_blend_epi32(_mm256_set1_epi32(e), _mm256_set1_epi32(f), 0x20);
    const __m256i gh = _mm256_blend_epi32(_mm256_set1_epi32(g), _mm256_set1_epi32(h), 0x80);
    return _mm256_blend_epi32(_mm256_blend_epi32(ab, cd, 0x0c), _mm256_blend_epi32(ef, gh, 0xc0), 0xf0);
#else
    return _mm256_setr_epi32(a, b, c, d, e, f, g, h);
#endif
}

// Loads four bytes of each of eight channels.
AVX2_INLINE __m256i load_dwords(const uint8_t * p, size_t stride) {
    const auto at = [=](int c) {
        return read<int32_t>(p + c * stride);
    };
    return join(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7));
}

// Repacked weights of ARM: two quads, `stride` bytes apart.

// Loads four half floats of each quad.
AVX2_INLINE __m256 load_quads_halves(const uint8_t * p, size_t stride) {
    return _mm256_cvtph_ps(_mm_unpacklo_epi64(load64(p), load64(p + stride)));
}

// Loads 16 bytes of each channel, which lie in pieces of four, in the order of load_transposed.
AVX2_INLINE void load_quads_fours(const uint8_t * p, size_t stride, __m256i * v) {
    for (int i = 0; i < 4; ++i) {
        v[i] = load_two(p + 16 * i, p + stride + 16 * i);
    }
}

// The same for nibbles, in the order of load_nibbles.
AVX2_INLINE void load_quads_nibbles(const uint8_t * p, size_t stride, __m256i * q) {
    __m256i v[4];
    load_quads_fours(p, stride, v);
    split_nibbles(v, q);
}

// Loads 16 bytes of each channel, which lie in pieces of eight: those of one quad, then those of the other.
AVX2_INLINE void load_quads_eights(const uint8_t * p, size_t stride, __m256i * v) {
    for (int i = 0; i < 2; ++i) {
        v[i]     = load256(p + 32 * i);
        v[i + 2] = load256(p + stride + 32 * i);
    }
}

// Loads two half floats of each of eight channels: a scale and a minimum.
AVX2_INLINE void load_scale_and_min(const uint8_t * p, size_t stride, unpacked & w) {
    const __m256i both  = load_dwords(p, stride);
    const __m256i words = _mm256_packus_epi32(_mm256_and_si256(both, _mm256_set1_epi32(0xffff)),
                                              _mm256_srli_epi32(both, 16)); // d m d m, four of each
    const __m256i order = _mm256_permute4x64_epi64(words, 0xd8);
    w.d                 = _mm256_cvtph_ps(_mm256_castsi256_si128(order));
    w.m                 = _mm256_cvtph_ps(_mm256_extracti128_si256(order, 1));
}

} // namespace eagle3::kernels::avx2
#endif
