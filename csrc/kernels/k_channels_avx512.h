// Reads blocks of sixteen mapped K-quants' channels for AVX-512-VNNI, a channel per lane.
#pragma once

#include "kernels/avx512.h"
#include "kernels/k_quads_avx2.h"

#if defined(__x86_64__)

namespace eagle3::kernels::avx512 {

using avx2::QK_K;

// One block of sixteen channels.
template <int SUB>
struct wide_block {
    __m512i q[QK_K / 4];         // q[i]: inputs 4 i to 4 i + 3 of each channel
    __m512i scale[QK_K / SUB];   // 32 bits each
    __m512i min[QK_K / SUB / 2]; // 16 bits each, of two sub-blocks; not if weights have an offset
    __m512  d;
    __m512  dmin; // negative
};

// Adds the bits of `mask` from x, shifted to the left, or to the right if `left` is negative.
AVX512_INLINE __m512i with_bits(__m512i low, __m512i x, int left, int mask) {
    const __m512i high = left < 0 ? _mm512_srli_epi16(x, -left) : left > 0 ? _mm512_slli_epi16(x, left) : x;
    return _mm512_ternarylogic_epi32(low, high, _mm512_set1_epi8(static_cast<char>(mask)), 0xf8); // low | high & mask
}

// The four bytes of each channel, which are four scales.
AVX512_INLINE void put_scales(__m512i x, __m512i * scale) {
    scale[0] = _mm512_srai_epi32(_mm512_slli_epi32(x, 24), 24);
    scale[1] = _mm512_srai_epi32(_mm512_slli_epi32(x, 16), 24);
    scale[2] = _mm512_srai_epi32(_mm512_slli_epi32(x, 8), 24);
    scale[3] = _mm512_srai_epi32(x, 24);
}

AVX512_INLINE void put_mins(__m512i x, __m512i * min) {
    const __m128i first = _mm_setr_epi8(0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1); // -1: a zero
    const __m128i last  = _mm_setr_epi8(2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15, -1);
    min[0]              = _mm512_shuffle_epi8(x, _mm512_broadcast_i32x4(first));
    min[1]              = _mm512_shuffle_epi8(x, _mm512_broadcast_i32x4(last));
}

// The two half floats of each channel.
template <int SUB>
AVX512_INLINE void put_d_dmin(__m512i x, wide_block<SUB> & block) {
    block.d    = floats(x);
    block.dmin = _mm512_xor_ps(floats(_mm512_srli_epi32(x, 16)), _mm512_set1_ps(-0.0f));
}

// Sixteen mapped channels: w[c] is a block of channel c. While bytes are read, as many of the channels after these are
// prefetched: all of a block's at once would delay its own loads.
template <class Format>
struct mapped_channels {
    static constexpr size_t SIZE = Format::SIZE;

    const uint8_t * w[16];
    const uint8_t * next; // what is prefetched into the second cache meanwhile

    // 32 bytes of each channel, `at` bytes after the beginning of its block: x[i] gets bytes 4 i to 4 i + 3.
    AVX512_INLINE void transpose(size_t at, __m512i (&x)[8]) {
        __m512i y[8];
        for (int i = 0; i < 8; ++i) {
            prefetch_next();
            const int c = i < 4 ? i : i + 4;
            y[i]        = join(avx2::load256(bytes(c, at)), avx2::load256(bytes(c + 4, at)));
        }
        transpose_dwords(y[0], y[1], y[2], y[3]);
        transpose_dwords(y[4], y[5], y[6], y[7]);
        for (int i = 0; i < 4; ++i) {
            x[i]     = _mm512_shuffle_i32x4(y[i], y[i + 4], 0x88);
            x[i + 4] = _mm512_shuffle_i32x4(y[i], y[i + 4], 0xdd);
        }
    }

    // The same for 16 bytes.
    AVX512_INLINE void transpose(size_t at, __m512i (&x)[4]) {
        for (int i = 0; i < 4; ++i) {
            prefetch_next();
            x[i] = _mm512_castsi128_si512(k_quads::load16(bytes(i, at)));
            x[i] = _mm512_inserti32x4(x[i], k_quads::load16(bytes(i + 4, at)), 1);
            x[i] = _mm512_inserti32x4(x[i], k_quads::load16(bytes(i + 8, at)), 2);
            x[i] = _mm512_inserti32x4(x[i], k_quads::load16(bytes(i + 12, at)), 3);
        }
        transpose_dwords(x[0], x[1], x[2], x[3]);
    }

    // Prefetches the next block of channel c, and as much of the channels after these.
    AVX512_INLINE void prefetch(int c) {
        for (size_t at = 0; at < Format::SIZE; at += 64) {
            _mm_prefetch(reinterpret_cast<const char *>(w[c] + Format::SIZE + at), _MM_HINT_T0);
            prefetch_next();
        }
    }

    // Goes on to the next block; `after`: what is prefetched beside that.
    AVX512_INLINE void advance(const uint8_t * after) {
        for (const uint8_t *& p : w) {
            p += Format::SIZE;
        }
        next = after;
    }

  private:
    // The bytes of channel c from `at` on. The next block's are prefetched once for two times 32 bytes; processors do
    // so themselves where blocks are shorter than Q6_K's.
    AVX512_INLINE const uint8_t * bytes(int c, size_t at) const {
        if (Format::SIZE > 3 * 64 && at / 32 % 2 == 0) {
            _mm_prefetch(reinterpret_cast<const char *>(w[c] + Format::SIZE + at), _MM_HINT_T0);
        }
        return w[c] + at;
    }

    AVX512_INLINE void prefetch_next() {
        _mm_prefetch(reinterpret_cast<const char *>(next), _MM_HINT_T1);
        next += 64;
    }
};

// read() reads the scales of a block, and unpack() its weights.

template <class Format> // Q4_K and Q5_K
AVX512_INLINE void read(mapped_channels<Format> & w, wide_block<32> & block) {
    __m512i x[4]; // d and dmin, then as k_quads::unpack_6_bits has them
    w.transpose(Format::DM, x);
    put_scales(low_bits(x[1], 0, 63), block.scale);
    put_scales(with_bits(low_bits(x[3], 0, 15), x[1], -2, 48), block.scale + 4);
    put_mins(low_bits(x[2], 0, 63), block.min);
    put_mins(with_bits(low_bits(x[3], 4, 15), x[2], -2, 48), block.min + 2);
    put_d_dmin(x[0], block);
}

AVX512_INLINE void unpack(mapped_channels<k_quads::q4_K> & w, __m512i * q) {
    for (int p = 0; p < 4; ++p) {
        __m512i x[8];
        w.transpose(k_quads::q4_K::QS + 32 * p, x);
        for (int i = 0; i < 8; ++i) {
            q[16 * p + i]     = low_bits(x[i], 0, 15);
            q[16 * p + 8 + i] = low_bits(x[i], 4, 15);
        }
    }
}

AVX512_INLINE void unpack(mapped_channels<k_quads::q5_K> & w, __m512i * q) {
    __m512i h[8];
    w.transpose(k_quads::q5_K::QH, h);
    for (int p = 0; p < 4; ++p) {
        __m512i x[8];
        w.transpose(k_quads::q5_K::QS + 32 * p, x);
        for (int i = 0; i < 8; ++i) {
            q[16 * p + i]     = with_bits(low_bits(x[i], 0, 15), h[i], 4 - 2 * p, 16);
            q[16 * p + 8 + i] = with_bits(low_bits(x[i], 4, 15), h[i], 3 - 2 * p, 16);
        }
    }
}

AVX512_INLINE void read(mapped_channels<k_quads::q6_K> & w, wide_block<16> & block) {
    __m512i x[4];
    w.transpose(k_quads::q6_K::SCALES, x);
    for (int i = 0; i < 4; ++i) {
        put_scales(x[i], block.scale + 4 * i);
    }
    w.transpose(k_quads::q6_K::D - 14, x); // memory may end after the block
    block.d = floats(_mm512_srli_epi32(x[3], 16));
}

AVX512_INLINE void unpack(mapped_channels<k_quads::q6_K> & w, __m512i * q) {
    for (int half = 0; half < 2; ++half, q += 32) {
        __m512i a[8], b[8], h[8];
        w.transpose(k_quads::q6_K::QL + 64 * half, a);
        w.transpose(k_quads::q6_K::QL + 64 * half + 32, b);
        w.transpose(k_quads::q6_K::QH + 32 * half, h);
        for (int i = 0; i < 8; ++i) {
            q[i]      = with_bits(low_bits(a[i], 0, 15), h[i], 4, 48);
            q[8 + i]  = with_bits(low_bits(b[i], 0, 15), h[i], 2, 48);
            q[16 + i] = with_bits(low_bits(a[i], 4, 15), h[i], 0, 48);
            q[24 + i] = with_bits(low_bits(b[i], 4, 15), h[i], -2, 48);
        }
    }
}

AVX512_INLINE void read(mapped_channels<k_quads::q3_K> & w, wide_block<16> & block) {
    __m512i x[4]; // x[1] to x[3] as q3_K::scales has them
    w.transpose(k_quads::q3_K::SCALES - 4, x);
    for (int i = 0; i < 4; ++i) {
        const __m512i bits = with_bits(low_bits(x[1 + i % 2], 4 * (i / 2), 15), x[3], 4 - 2 * i, 48);
        put_scales(_mm512_sub_epi8(bits, _mm512_set1_epi8(32)), block.scale + 4 * i);
    }
    w.transpose(k_quads::q3_K::D - 14, x);
    block.d = floats(_mm512_srli_epi32(x[3], 16));
}

AVX512_INLINE void unpack(mapped_channels<k_quads::q3_K> & w, __m512i * q) {
    __m512i h[8];
    w.transpose(k_quads::q3_K::HMASK, h);
    for (int half = 0; half < 2; ++half) {
        __m512i x[8];
        w.transpose(k_quads::q3_K::QS + 32 * half, x);
        for (int j = 0; j < 4; ++j, q += 8) {
            for (int i = 0; i < 8; ++i) {
                q[i] = with_bits(low_bits(x[i], 2 * j, 3), h[i], 2 - 4 * half - j, 4);
            }
        }
    }
}

AVX512_INLINE void read(mapped_channels<k_quads::q2_K> & w, wide_block<16> & block) {
    __m512i x[4];
    w.transpose(k_quads::q2_K::SCALES, x);
    for (int i = 0; i < 4; ++i) {
        put_scales(low_bits(x[i], 0, 15), block.scale + 4 * i);
        put_mins(low_bits(x[i], 4, 15), block.min + 2 * i);
    }
    w.transpose(k_quads::q2_K::DM - 12, x);
    put_d_dmin(x[3], block);
}

AVX512_INLINE void unpack(mapped_channels<k_quads::q2_K> & w, __m512i * q) {
    for (int half = 0; half < 2; ++half) {
        __m512i x[8];
        w.transpose(k_quads::q2_K::QS + 32 * half, x);
        for (int j = 0; j < 4; ++j, q += 8) {
            for (int i = 0; i < 8; ++i) {
                q[i] = low_bits(x[i], 2 * j, 3);
            }
        }
    }
}

} // namespace eagle3::kernels::avx512
#endif
