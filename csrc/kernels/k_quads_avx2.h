// Reads the weights of K-quants, as files have them (ggml/src/ggml-common.h) and in ggml's repacked layouts
// (ggml/src/ggml-cpu/repack.h).
#pragma once

#include "kernels/avx2.h"
#include "kernels/q8_K_avx2.h"

#ifdef EAGLE3_HAS_KERNELS

namespace eagle3::kernels::k_quads {

using avx2::QK_K;

// A quad is four channels. Its vectors have a quarter for each: eight inputs of 8 bits, or four scales of 16 bits. A
// format makes such vectors of one block of each channel.

AVX2_INLINE __m128i load16(const uint8_t * p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i *>(p));
}

AVX2_INLINE __m128i load_two_eights(const uint8_t * a, const uint8_t * b) {
    const __m128i low = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(a));
    return _mm_castps_si128(_mm_loadh_pi(_mm_castsi128_ps(low), reinterpret_cast<const __m64 *>(b)));
}

// Loads eight bytes of each channel, `at` bytes after the beginning of its block.
AVX2_INLINE __m256i load_quad(const uint8_t * const * blocks, size_t at) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load_two_eights(blocks[0] + at, blocks[1] + at)),
                                   load_two_eights(blocks[2] + at, blocks[3] + at), 1);
}

// Does the same for one of the two quads of a repacked octet. VALUES: where byte 0 of the channels' blocks would be if
// whole blocks were repacked as the values are, TOGETHER bytes of each channel.
template <int QUAD, int TOGETHER, int VALUES>
struct octet_values {
    const uint8_t * w;
};

template <int QUAD, int TOGETHER, int VALUES>
AVX2_INLINE __m256i load_quad(octet_values<QUAD, TOGETHER, VALUES> octet, size_t at) {
    const uint8_t * p = octet.w + VALUES + 8 * at;
    if constexpr (TOGETHER == 8) {
        return avx2::load256(p + 32 * QUAD);
    } else {
        const __m128i a = load16(p + 16 * QUAD), b = load16(p + 32 + 16 * QUAD);
        return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_unpacklo_epi32(a, b)), _mm_unpackhi_epi32(a, b), 1);
    }
}

AVX2_INLINE __m256i low_bits(__m256i x, int shift, int mask) {
    return _mm256_and_si256(_mm256_srli_epi16(x, shift), _mm256_set1_epi8(static_cast<char>(mask)));
}

AVX2_INLINE __m128i low_bits(__m128i x, int shift, int mask) {
    return _mm_and_si128(_mm_srli_epi16(x, shift), _mm_set1_epi8(static_cast<char>(mask)));
}

// Transposes: x[w] gets word w of the four vectors.
AVX2_INLINE void transpose(__m128i (&x)[4]) {
    const __m128i a = _mm_unpacklo_epi32(x[0], x[1]);
    const __m128i b = _mm_unpacklo_epi32(x[2], x[3]);
    const __m128i c = _mm_unpackhi_epi32(x[0], x[1]);
    const __m128i d = _mm_unpackhi_epi32(x[2], x[3]);

    x[0] = _mm_unpacklo_epi64(a, b);
    x[1] = _mm_unpackhi_epi64(a, b);
    x[2] = _mm_unpacklo_epi64(c, d);
    x[3] = _mm_unpackhi_epi64(c, d);
}

// Transposes bytes: four times one byte of each of four channels becomes four bytes of each channel.
AVX2_INLINE __m128i by_channel(__m128i x) {
    return _mm_shuffle_epi8(x, _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
}

AVX2_INLINE void load_scales(const uint8_t * const * blocks, size_t at, __m128i (&x)[4]) {
    for (int c = 0; c < 4; ++c) {
        x[c] = load16(blocks[c] + at);
    }
    transpose(x);
}

// Makes (d, d, -dmin, -dmin) of pairs of half floats (d, dmin), first for two channels, then for the other two.
AVX2_INLINE __m256 scales_of_pairs(__m128i pairs) {
    const __m256 d = _mm256_permute_ps(_mm256_cvtph_ps(pairs), 0b11'01'10'00);
    return _mm256_xor_ps(d, _mm256_setr_ps(0, 0, -0.0f, -0.0f, 0, 0, -0.0f, -0.0f));
}

AVX2_INLINE __m256 load_d_dmin(const uint8_t * const * blocks, size_t at) {
    int32_t pairs[4];
    for (int c = 0; c < 4; ++c) {
        std::memcpy(pairs + c, blocks[c] + at, sizeof(int32_t));
    }
    return scales_of_pairs(_mm_setr_epi32(pairs[0], pairs[1], pairs[2], pairs[3]));
}

AVX2_INLINE __m256 load_d(const uint8_t * const * blocks, size_t at) {
    uint16_t d[4];
    for (int c = 0; c < 4; ++c) {
        std::memcpy(d + c, blocks[c] + at, sizeof(uint16_t));
    }
    return scales_of_pairs(_mm_setr_epi32(d[0], d[1], d[2], d[3]));
}

// The same for repacked weights, in which four d and four dmin lie together.
AVX2_INLINE __m256 load_d_dmin_of_quad(const uint8_t * d, const uint8_t * dmin) {
    return scales_of_pairs(_mm_unpacklo_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(d)),
                                              _mm_loadl_epi64(reinterpret_cast<const __m128i *>(dmin))));
}

// The scales of a quad's block. A weight is scale * q - min, or scale * (q - 2^OFFSET_BITS).
template <int SUB>
struct quad_scales {
    static constexpr int N = QK_K / SUB / 4; // vectors of four scales

    __m256i scale[N];
    __m256i min[N]; // or the scale once more
    __m256  d;      // see scales_of_pairs
};

// Unpacks three words of each channel, as Q4_K and Q5_K have them: 6 bits of four scales, then of four mins, each with
// the high bits of four more; then the low bits of these.
AVX2_INLINE void unpack_6_bits(const __m128i (&x)[4], __m128i (&scale)[2], __m128i (&min)[2]) {
    scale[0] = low_bits(x[0], 0, 63);
    min[0]   = low_bits(x[1], 0, 63);
    scale[1] = _mm_or_si128(low_bits(x[2], 0, 15), low_bits(x[0], 2, 48));
    min[1]   = _mm_or_si128(low_bits(x[2], 4, 15), low_bits(x[1], 2, 48));
}

struct q4_K {
    static constexpr int SUB = 32, OFFSET_BITS = 0, Q_MAX = 15;
    enum : size_t { DM = 0, SCALES = 4, QS = 16, SIZE = 144 };
    static constexpr int OCTET_VALUES = 0;

    AVX2_INLINE static void scales(const uint8_t * const * w, quad_scales<SUB> & s) {
        __m128i x[4], scale[2], min[2];
        load_scales(w, SCALES, x);
        unpack_6_bits(x, scale, min);
        for (int i = 0; i < 2; ++i) {
            s.scale[i] = _mm256_cvtepu8_epi16(scale[i]);
            s.min[i]   = _mm256_cvtepu8_epi16(min[i]);
        }
        s.d = load_d_dmin(w, DM);
    }

    // 12 bytes are packed as one channel's, but belong to one sub-block: in the place of scales 0 to 7 they have the
    // scales of channels 0 to 7.
    AVX2_INLINE static void scales_of_octet(const uint8_t * w, quad_scales<SUB> (&s)[2]) {
        for (int i = 0; i < 2; ++i) {
            __m128i x[4], scale[2], min[2];
            for (int j = 0; j < 4; ++j) {
                x[j] = load16(w + 32 + 12 * (4 * i + j));
            }
            transpose(x);
            unpack_6_bits(x, scale, min);
            for (int quad = 0; quad < 2; ++quad) {
                s[quad].scale[i] = _mm256_cvtepu8_epi16(by_channel(scale[quad]));
                s[quad].min[i]   = _mm256_cvtepu8_epi16(by_channel(min[quad]));
            }
        }
        for (int quad = 0; quad < 2; ++quad) {
            s[quad].d = load_d_dmin_of_quad(w + 8 * quad, w + 16 + 8 * quad);
        }
    }

    // v[i]: inputs from 64 P + 8 i on.
    template <int P, class Source>
    AVX2_INLINE static void unpack(const Source & w, __m256i (&v)[8]) {
        for (int i = 0; i < 4; ++i) {
            const __m256i q = load_quad(w, QS + 32 * P + 8 * i);
            v[i]            = low_bits(q, 0, 15);
            v[i + 4]        = low_bits(q, 4, 15);
        }
    }
};

struct q5_K {
    static constexpr int SUB = 32, OFFSET_BITS = 0, Q_MAX = 31;
    enum : size_t { DM = 0, SCALES = 4, QH = 16, QS = 48, SIZE = 176 };
    static constexpr int OCTET_VALUES = 0;

    AVX2_INLINE static void scales(const uint8_t * const * w, quad_scales<SUB> & s) { q4_K::scales(w, s); }

    AVX2_INLINE static void scales_of_octet(const uint8_t * w, quad_scales<SUB> (&s)[2]) {
        q4_K::scales_of_octet(w, s);
    }

    template <int P, class Source>
    AVX2_INLINE static void unpack(const Source & w, __m256i (&v)[8]) {
        for (int i = 0; i < 4; ++i) {
            const __m256i q = load_quad(w, QS + 32 * P + 8 * i);
            const __m256i h = _mm256_srli_epi16(load_quad(w, QH + 8 * i), 2 * P);
            v[i]            = _mm256_or_si256(low_bits(q, 0, 15), _mm256_slli_epi16(low_bits(h, 0, 1), 4));
            v[i + 4]        = _mm256_or_si256(low_bits(q, 4, 15), _mm256_slli_epi16(low_bits(h, 0, 2), 3));
        }
    }
};

// The other formats have a scale for each 16 inputs: vectors 2 g and 2 g + 1 hold inputs from
// 128 (P / 2) + 16 (P % 2) + 32 g on, and from 8 more on.

struct q6_K {
    static constexpr int SUB = 16, OFFSET_BITS = 5, Q_MAX = 63;
    enum : size_t { QL = 0, QS = QL, QH = 128, SCALES = 192, D = 208, SIZE = 210 };
    static constexpr int OCTET_VALUES = 144; // values are after the scales, and the scales of these

    AVX2_INLINE static void scales(const uint8_t * const * w, quad_scales<SUB> & s) {
        __m128i x[4];
        load_scales(w, SCALES, x);
        for (int i = 0; i < 4; ++i) {
            s.scale[i] = s.min[i] = _mm256_cvtepi8_epi16(x[i]);
        }
        s.d = load_d(w, D);
    }

    // Sixteen times a byte of each channel.
    AVX2_INLINE static void scales_of_octet(const uint8_t * w, quad_scales<SUB> (&s)[2]) {
        for (int quad = 0; quad < 2; ++quad) {
            for (int i = 0; i < 4; ++i) {
                const uint8_t * p = w + 16 + 32 * i + 4 * quad;
                const __m128i   a = _mm_unpacklo_epi32(avx2::load64(p), avx2::load64(p + 8));
                const __m128i   b = _mm_unpacklo_epi32(avx2::load64(p + 16), avx2::load64(p + 24));
                s[quad].scale[i] = s[quad].min[i] = _mm256_cvtepi8_epi16(by_channel(_mm_unpacklo_epi64(a, b)));
            }
            const __m128i d = _mm_unpacklo_epi16(avx2::load64(w + 8 * quad), _mm_setr_epi32(0, 0, 0, 0));
            s[quad].d       = scales_of_pairs(d);
        }
    }

    template <int P, class Source>
    AVX2_INLINE static void unpack(const Source & w, __m256i (&v)[8]) {
        for (int i = 0; i < 2; ++i) {
            const int     at = 16 * (P % 2) + 8 * i;
            const __m256i a  = load_quad(w, QL + 64 * (P / 2) + at);
            const __m256i b  = load_quad(w, QL + 64 * (P / 2) + 32 + at);
            const __m256i h  = load_quad(w, QH + 32 * (P / 2) + at);
            v[i]             = _mm256_or_si256(low_bits(a, 0, 15), _mm256_slli_epi16(low_bits(h, 0, 3), 4));
            v[i + 2]         = _mm256_or_si256(low_bits(b, 0, 15), _mm256_slli_epi16(low_bits(h, 0, 12), 2));
            v[i + 4]         = _mm256_or_si256(low_bits(a, 4, 15), low_bits(h, 0, 48));
            v[i + 6]         = _mm256_or_si256(low_bits(b, 4, 15), low_bits(h, 2, 48));
        }
    }
};

struct q3_K {
    static constexpr int SUB = 16, OFFSET_BITS = 2, Q_MAX = 7;
    enum : size_t { HMASK = 0, QS = 32, SCALES = 96, D = 108, SIZE = 110 };

    AVX2_INLINE static void scales(const uint8_t * const * w, quad_scales<SUB> & s) {
        __m128i x[4];
        load_scales(w, SCALES - 4, x); // 12 bytes and the 4 before them: memory may end after the block
        const __m128i scale[4] = {
            _mm_or_si128(low_bits(x[1], 0, 15), _mm_slli_epi16(low_bits(x[3], 0, 3), 4)),
            _mm_or_si128(low_bits(x[2], 0, 15), _mm_slli_epi16(low_bits(x[3], 0, 12), 2)),
            _mm_or_si128(low_bits(x[1], 4, 15), low_bits(x[3], 0, 48)),
            _mm_or_si128(low_bits(x[2], 4, 15), low_bits(x[3], 2, 48)),
        };
        for (int i = 0; i < 4; ++i) {
            s.scale[i] = s.min[i] = _mm256_sub_epi16(_mm256_cvtepu8_epi16(scale[i]), _mm256_set1_epi16(32));
        }
        s.d = load_d(w, D);
    }

    template <int P, class Source>
    AVX2_INLINE static void unpack(const Source & w, __m256i (&v)[8]) {
        for (int i = 0; i < 2; ++i) {
            const int     at = 16 * (P % 2) + 8 * i;
            const __m256i q  = load_quad(w, QS + 32 * (P / 2) + at);
            const __m256i h  = _mm256_srli_epi16(load_quad(w, HMASK + at), 4 * (P / 2));
            v[i]             = _mm256_or_si256(low_bits(q, 0, 3), _mm256_slli_epi16(low_bits(h, 0, 1), 2));
            v[i + 2]         = _mm256_or_si256(low_bits(q, 2, 3), _mm256_slli_epi16(low_bits(h, 0, 2), 1));
            v[i + 4]         = _mm256_or_si256(low_bits(q, 4, 3), low_bits(h, 0, 4));
            v[i + 6]         = _mm256_or_si256(low_bits(q, 6, 3), low_bits(h, 1, 4));
        }
    }
};

struct q2_K {
    static constexpr int SUB = 16, OFFSET_BITS = 0, Q_MAX = 3;
    enum : size_t { SCALES = 0, QS = 16, DM = 80, SIZE = 84 };
    static constexpr int OCTET_VALUES = 32;

    AVX2_INLINE static void scales(const uint8_t * const * w, quad_scales<SUB> & s) {
        __m128i x[4];
        load_scales(w, SCALES, x);
        for (int i = 0; i < 4; ++i) {
            s.scale[i] = _mm256_cvtepu8_epi16(low_bits(x[i], 0, 15));
            s.min[i]   = _mm256_cvtepu8_epi16(low_bits(x[i], 4, 15));
        }
        s.d = load_d_dmin(w, DM);
    }

    AVX2_INLINE static void scales_of_octet(const uint8_t * w, quad_scales<SUB> (&s)[2]) {
        for (int quad = 0; quad < 2; ++quad) {
            for (int i = 0; i < 4; ++i) { // two scales of each channel, then the next two
                const uint8_t * p    = w + 32 + 32 * i + 8 * quad;
                const __m128i   both = _mm_unpacklo_epi16(avx2::load64(p), avx2::load64(p + 16));
                s[quad].scale[i]     = _mm256_cvtepu8_epi16(low_bits(both, 0, 15));
                s[quad].min[i]       = _mm256_cvtepu8_epi16(low_bits(both, 4, 15));
            }
            s[quad].d = load_d_dmin_of_quad(w + 8 * quad, w + 16 + 8 * quad);
        }
    }

    template <int P, class Source>
    AVX2_INLINE static void unpack(const Source & w, __m256i (&v)[8]) {
        for (int i = 0; i < 2; ++i) {
            const __m256i q = load_quad(w, QS + 32 * (P / 2) + 16 * (P % 2) + 8 * i);
            v[i]            = low_bits(q, 0, 3);
            v[i + 2]        = low_bits(q, 2, 3);
            v[i + 4]        = low_bits(q, 4, 3);
            v[i + 6]        = low_bits(q, 6, 3);
        }
    }
};

// Processors do not prefetch four channels by themselves: these are too many streams, and too short.
inline void prefetch(const uint8_t * weights, size_t n_bytes) {
    for (size_t i = 0; i < n_bytes; i += 64) {
        _mm_prefetch(reinterpret_cast<const char *>(weights + i), _MM_HINT_T1);
    }
}

// A quad of mapped weights: the blocks of a channel lie one after another.
template <class Format>
struct mapped_quad : Format {
    static constexpr int N_QUADS = 1;

    const uint8_t * w[4];

    AVX2_INLINE void scales(quad_scales<Format::SUB> (&s)[1]) const { Format::scales(w, s[0]); }
    template <int P, int QUAD = 0>
    AVX2_INLINE void unpack(__m256i (&v)[8]) const {
        Format::template unpack<P>(w, v);
    }

    // The next quad's channels lie after those of this one.
    void prefetch_next(int64_t b, int64_t nb) const {
        prefetch(w[0] + (4 * nb + 3 * b) * Format::SIZE, 4 * Format::SIZE);
    }

    void advance() {
        for (const uint8_t *& block : w) {
            block += Format::SIZE;
        }
    }
};

// Both quads of a repacked block, in which TOGETHER bytes of a channel lie together.
template <class Format, int TOGETHER = 8>
struct repacked_quads {
    static constexpr int N_QUADS = 2;
    static constexpr int SUB = Format::SUB, OFFSET_BITS = Format::OFFSET_BITS, Q_MAX = Format::Q_MAX;
    enum : size_t { QS = Format::OCTET_VALUES + 8 * Format::QS, SIZE = 8 * Format::SIZE };
    enum : size_t { AHEAD = SIZE * 3 / 2 / 64 * 64 }; // bytes from a block to what is prefetched meanwhile

    const uint8_t * w;

    AVX2_INLINE void scales(quad_scales<SUB> (&s)[2]) const { Format::scales_of_octet(w, s); }

    template <int P, int QUAD>
    AVX2_INLINE void unpack(__m256i (&v)[8]) const {
        // an eighth of a block: prefetches that are spread over the work delay its own loads less than all at once
        constexpr size_t part = 4 * QUAD + P, end = SIZE * (part + 1) / 8 / 64 * 64;
        for (size_t i = SIZE * part / 8 / 64 * 64; i < end; i += 64) {
            _mm_prefetch(reinterpret_cast<const char *>(w + AHEAD + i), _MM_HINT_T0);
        }
        Format::template unpack<P>(octet_values<QUAD, TOGETHER, Format::OCTET_VALUES>{ w }, v);
    }

    void advance() { w += SIZE; }
};

} // namespace eagle3::kernels::k_quads
#endif
