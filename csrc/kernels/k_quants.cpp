// Multiplies K-quants by rows: the loops that all formats share.
#include "kernels/formats.h"

#ifdef EAGLE3_HAS_KERNELS
#include "kernels/instruction_sets.h"
#include "kernels/k_quads_avx2.h"
#include "kernels/k_quants.h"

#if defined(__x86_64__)
#include "kernels/k_quants_avx512.h"
#include "kernels/k_tiles_amx.h"
#endif

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace eagle3::kernels {

namespace {

using namespace k_quads;

template <class Block>
size_t row_size(int64_t k) {
    return Block::row_bytes(k / QK_K);
}

// OFFSET_BITS: of weights whose rows have their sums times -offset, or 0.
template <class Block, int OFFSET_BITS>
AVX2 void quantize(const float * x, int64_t k, uint8_t * row) {
    auto *        blocks = reinterpret_cast<Block *>(row);
    constexpr int n_sums = std::extent_v<decltype(Block::sums)>;
    for (int64_t b = 0; b < k / QK_K; ++b, x += QK_K) {
        int32_t sums[QK_K / 16];
        blocks[b].d = avx2::quantize_q8_K(x, blocks[b].qs, sums);
        for (int i = 0; i < n_sums; ++i) {
            const int32_t sum = n_sums == 16 ? sums[i] : sums[2 * i] + sums[2 * i + 1];
            blocks[b].sums[i] = OFFSET_BITS > 0 ? -(1 << OFFSET_BITS) * sum : sum;
        }
    }
}

AVX2_INLINE __m256i for_all(const void * eight_bytes) {
    int64_t x;
    std::memcpy(&x, eight_bytes, sizeof(x));
    return _mm256_set1_epi64x(x);
}

template <class Isa, class Quad>
constexpr bool adds_four = Isa::has_vnni && (Isa::scales_dwords || four_fit<Quad>);

// Scale `i` of each channel: in all four places, or in the first and third, or twice in 32 bits.
template <class Isa, class Quad>
AVX2_INLINE __m256i spread(__m256i scales, int i) {
    if constexpr (Isa::scales_dwords) {
        const __m256i high = _mm256_setr_epi8(-128, -128, 0, 1, -128, -128, 0, 1, -128, -128, 8, 9, -128, -128, 8, 9, //
                                              -128, -128, 0, 1, -128, -128, 0, 1, -128, -128, 8, 9, -128, -128, 8, 9);
        const __m256i at   = _mm256_add_epi8(high, _mm256_set1_epi16(static_cast<short>(0x0202 * i)));
        return _mm256_srai_epi32(_mm256_shuffle_epi8(scales, at), 16);
    }
    const char    a = adds_four<Isa, Quad> ? -128 : 0, b = adds_four<Isa, Quad> ? -128 : 1; // -128: a zero
    const __m256i first = _mm256_setr_epi8(0, 1, a, b, 0, 1, a, b, 8, 9, a + 8, b + 8, 8, 9, a + 8, b + 8, //
                                           0, 1, a, b, 0, 1, a, b, 8, 9, a + 8, b + 8, 8, 9, a + 8, b + 8);
    return _mm256_shuffle_epi8(scales, _mm256_add_epi8(first, _mm256_set1_epi8(static_cast<char>(2 * i))));
}

// Multiplies 64 inputs of a quad by those of a row; returns two sums for each channel.
template <class Isa, class Quad>
AVX2_INLINE __m256i dot(const __m256i (&v)[8], const __m256i (&scale)[64 / Quad::SUB], const int8_t * y) {
    constexpr int n = Quad::SUB / 8;
    static_assert(n * 2 * Quad::Q_MAX * 127 < 1 << 15, "");

    __m256i sum = _mm256_setzero_si256();
    for (int g = 0; g < 64 / Quad::SUB; ++g) {
        __m256i a;
        if constexpr (adds_four<Isa, Quad>) {
            a = _mm256_setzero_si256();
            for (int i = 0; i < n; ++i) {
                a = Isa::add_bytes(a, v[n * g + i], for_all(y + 32 * g + 8 * i));
            }
        } else {
            a = Isa::template multiply_bytes<false>(v[n * g], for_all(y + 32 * g));
            for (int i = 1; i < n; ++i) {
                a = _mm256_add_epi16(a, Isa::template multiply_bytes<false>(v[n * g + i], for_all(y + 32 * g + 8 * i)));
            }
        }
        if constexpr (Isa::scales_dwords) {
            sum = Isa::add_scaled(sum, a, scale[g]);
        } else {
            sum = Isa::add_words(sum, a, scale[g]);
        }
    }
    return sum;
}

// The same for two rows: each has every other sum.
template <class Isa, class Quad>
AVX2_INLINE __m256i dot_of_two(const __m256i (&v)[8], const __m256i (&scale)[64 / Quad::SUB], const int8_t * first,
                               const int8_t * second) {
    constexpr int n   = Quad::SUB / 8;
    __m256i       sum = _mm256_setzero_si256();
    for (int g = 0; g < 64 / Quad::SUB; ++g) {
        __m256i a = _mm256_setzero_si256();
        for (int i = 0; i < n; ++i) {
            const int at = 32 * g + 8 * i;
            a            = Isa::add_matrices(a, v[n * g + i], Isa::of_rows(first + at, second + at));
        }
        sum = Isa::add_scaled(sum, a, scale[g]);
    }
    return sum;
}

// Multiplies quarter P of one of a block's quads by n rows, and adds the products to `sums`.
template <class Isa, int P, int QUAD, class Quads>
AVX2_INLINE void add_quarter(const Quads & w, const quad_scales<Quads::SUB> & s, const uint8_t * rows,
                             int64_t row_bytes, int64_t n, __m256i * sums) {
    constexpr int SUB   = Quads::SUB;
    constexpr int FIRST = SUB == 32 ? 64 * P : 128 * (P / 2) + 16 * (P % 2); // input
    __m256i       v[8], scale[64 / SUB];
    w.template unpack<P, QUAD>(v);
    for (int g = 0; g < 64 / SUB; ++g) {
        const int sub = (FIRST + 32 * g) / SUB;
        scale[g]      = spread<Isa, Quads>(s.scale[sub / 4], sub % 4);
    }
    const auto values = [=](int64_t r) {
        return reinterpret_cast<const block_q8<SUB> *>(rows + r * row_bytes)->qs + FIRST;
    };
    int64_t r = 0;
    if constexpr (Isa::has_matrices) {
        for (; r + 2 <= n; r += 2) {
            const __m256i sum = dot_of_two<Isa, Quads>(v, scale, values(r), values(r + 1));
            sums[r]           = P == 0 ? sum : _mm256_add_epi32(sums[r], sum);
        }
    }
    for (; r < n; ++r) {
        const __m256i sum = dot<Isa, Quads>(v, scale, values(r));
        sums[r]           = P == 0 ? sum : _mm256_add_epi32(sums[r], sum);
    }
}

// Separates the sums of two rows into those of each row, whose other lanes are zero.
template <class Isa>
AVX2_INLINE void part_rows(int64_t n, __m256i * sums) {
    if constexpr (Isa::has_matrices) {
        for (int64_t r = 0; r + 2 <= n; r += 2) {
            sums[r + 1] = _mm256_and_si256(sums[r], _mm256_setr_epi32(0, -1, 0, -1, 0, -1, 0, -1));
            sums[r]     = _mm256_and_si256(sums[r], _mm256_setr_epi32(-1, 0, -1, 0, -1, 0, -1, 0));
        }
    }
}

// Multiplies one of a block's quads by n rows, and adds the products to acc.
template <class Isa, int QUAD, class Quads>
AVX2_INLINE void add_block(const Quads & w, const quad_scales<Quads::SUB> & s, const uint8_t * rows, int64_t row_bytes,
                           int64_t n, __m256 * acc) {
    constexpr int SUB = Quads::SUB;
    __m256i       sums[ROWS_TOGETHER];
    add_quarter<Isa, 0, QUAD>(w, s, rows, row_bytes, n, sums);
    add_quarter<Isa, 1, QUAD>(w, s, rows, row_bytes, n, sums);
    add_quarter<Isa, 2, QUAD>(w, s, rows, row_bytes, n, sums);
    add_quarter<Isa, 3, QUAD>(w, s, rows, row_bytes, n, sums);
    part_rows<Isa>(n, sums);
    for (int64_t r = 0; r < n; ++r) {
        const auto & y    = *reinterpret_cast<const block_q8<SUB> *>(rows + r * row_bytes);
        __m256i      mins = _mm256_setzero_si256();
        for (int i = 0; i < quad_scales<SUB>::N; ++i) {
            mins = Isa::add_words(mins, s.min[i], for_all(y.sums + 4 * i));
        }
        if (Quads::OFFSET_BITS) {
            sums[r] = _mm256_sub_epi32(sums[r], _mm256_slli_epi32(mins, Quads::OFFSET_BITS));
            mins    = _mm256_setzero_si256();
        }
        const __m256 total = _mm256_cvtepi32_ps(_mm256_hadd_epi32(sums[r], mins));
        acc[r]             = _mm256_fmadd_ps(total, _mm256_mul_ps(s.d, _mm256_set1_ps(y.d)), acc[r]);
    }
}

// The same for mapped weights. A function of its own, since GCC 12's code is 6 % faster this way.
template <class Isa, class Quads>
AVX2 void add_mapped_block(const Quads & w, const quad_scales<Quads::SUB> & s, const uint8_t * rows, int64_t row_bytes,
                           int64_t n, __m256 * acc) {
    add_block<Isa, 0>(w, s, rows, row_bytes, n, acc);
}

// Multiplies the quads of a group by n rows, at most ROWS_TOGETHER: out[n][4 * N_QUADS]. A block's sums are exact
// integers, which are added up as floats, block after block. Inlined, so that the sums stay in registers if n is 1.
template <class Isa, class Quads>
AVX2_INLINE void compute_quads(Quads w, int64_t nb, const uint8_t * rows, int64_t n, float * out) {
    constexpr int SUB = Quads::SUB, N = Quads::N_QUADS;

    const int64_t row_bytes = nb * static_cast<int64_t>(sizeof(block_q8<SUB>));
    __m256        acc[N][ROWS_TOGETHER];
    for (int quad = 0; quad < N; ++quad) {
        for (int64_t r = 0; r < n; ++r) {
            acc[quad][r] = _mm256_setzero_ps();
        }
    }
    for (int64_t b = 0; b < nb; ++b, w.advance(), rows += sizeof(block_q8<SUB>)) {
        quad_scales<SUB> s[N];
        w.scales(s);
        if constexpr (N == 1) {
            w.prefetch_next(b, nb);
            add_mapped_block<Isa>(w, s[0], rows, row_bytes, n, acc[0]);
        } else {
            add_block<Isa, 0>(w, s[0], rows, row_bytes, n, acc[0]);
            add_block<Isa, 1>(w, s[1], rows, row_bytes, n, acc[1]);
        }
    }
    for (int quad = 0; quad < N; ++quad) {
        for (int64_t r = 0; r < n; ++r) {
            const __m256 a = acc[quad][r];
            const __m256 x = _mm256_add_ps(a, _mm256_permute_ps(a, 0b01'00'11'10)); // scales' and mins' part
            _mm_storeu_ps(out + 4 * (N * r + quad),
                          _mm_movelh_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)));
        }
    }
}

template <class Isa, class Quads>
AVX2 void compute_one_row(const Quads & w, int64_t nb, const uint8_t * row, float * out) {
    compute_quads<Isa>(w, nb, row, 1, out);
}

template <class Isa, class Quads>
AVX2 void compute_some_rows(const Quads & w, int64_t nb, const uint8_t * rows, int64_t n, float * out) {
    compute_quads<Isa>(w, nb, rows, n, out);
}

template <class Isa, class Quads>
void compute_quads(const Quads & w, int64_t nb, const uint8_t * rows, int64_t n_rows, float * out, int64_t ldo,
                   int64_t n_channels) {
    compute_rows<Quads::SUB, 4 * Quads::N_QUADS>(nb, rows, n_rows, out, ldo, n_channels,
                                                 [&](const uint8_t * some, int64_t n, float * results) {
                                                     if (n == 1) {
                                                         compute_one_row<Isa>(w, nb, some, results);
                                                     } else {
                                                         compute_some_rows<Isa>(w, nb, some, n, results);
                                                     }
                                                 });
}

template <class Isa, class Format>
void compute(const uint8_t * weights, int64_t k, const uint8_t * rows, int64_t n_rows, int64_t first, int64_t last,
             float * out, int64_t ldo) {
    const int64_t nb = k / QK_K;
    for (int64_t channel = first; channel < last; channel += 4) {
        mapped_quad<Format> w;
        for (int64_t i = 0; i < 4; ++i) { // the last quad is filled up with the last channel
            w.w[i] = weights + std::min(channel + i, last - 1) * nb * Format::SIZE;
        }
        compute_quads<Isa>(w, nb, rows, n_rows, out + channel, ldo, std::min<int64_t>(last - channel, 4));
    }
}

template <class Isa, class Format, int TOGETHER>
void compute_repacked(const uint8_t * weights, int64_t k, const uint8_t * rows, int64_t n_rows, int64_t first,
                      int64_t last, float * out, int64_t ldo) {
    using quads      = repacked_quads<Format, TOGETHER>;
    const int64_t nb = k / QK_K;
    for (int64_t group = first; group < last; ++group) {
        compute_quads<Isa>(quads{ weights + group * nb * quads::SIZE }, nb, rows, n_rows, out + 8 * group, ldo, 8);
    }
}

// The type of a block of activations.
template <class Isa, class Format>
constexpr auto block_of() {
#if defined(__x86_64__)
    if constexpr (Isa::is_wide) {
        return avx512::row_block<Format>{};
    } else
#endif
    {
        return block_q8<Format::SUB>{};
    }
}

template <class Isa, class Format>
using row_block = decltype(block_of<Isa, Format>());

template <class Isa, class Format>
constexpr auto compute_of() {
#if defined(EAGLE3_AMX)
    if constexpr (Isa::has_tiles) {
        return avx512::compute_tiled<Format>;
    }
#endif
#if defined(__x86_64__)
    if constexpr (Isa::is_wide) {
        return avx512::compute<Format>;
    }
#endif
    return compute<Isa, Format>;
}

template <class Isa, class Format, int TOGETHER>
constexpr auto compute_repacked_of() {
#if defined(EAGLE3_AMX)
    if constexpr (Isa::has_tiles) {
        return avx512::compute_repacked_tiled<Format>;
    }
#endif
#if defined(__x86_64__)
    if constexpr (Isa::is_wide) {
        return avx512::compute_repacked<Format>;
    }
#endif
    return compute_repacked<Isa, Format, TOGETHER>;
}

// compute_of(isa): the compute function of an instruction set.
template <class Format, class ComputeOf>
std::vector<kernel> kernels_of(const std::string & name, ggml_type type, layout where, int64_t n_channels,
                               int64_t n_together, ComputeOf && compute_of) {
    return avx2::by_instruction_sets<true>([&](auto isa) {
        using block               = row_block<decltype(isa), Format>;
        constexpr int OFFSET_BITS = std::is_same_v<block, block_q8<Format::SUB>> ? 0 : Format::OFFSET_BITS;
        return kernel{ name + "/" + isa.name,
                       type,
                       where,
                       n_channels,
                       QK_K,
                       n_together,
                       isa.is_supported,
                       row_size<block>,
                       quantize<block, OFFSET_BITS>,
                       compute_of(isa) };
    });
}

template <class Format>
std::vector<kernel> mapped(const std::string & name, ggml_type type) {
    return kernels_of<Format>(name, type, layout::mapped, 1, 0,
                              [](auto isa) { return compute_of<decltype(isa), Format>(); });
}

template <class Format, int TOGETHER = 8>
std::vector<kernel> repacked(const std::string & name, ggml_type type) {
    return kernels_of<Format>(name, type, layout::repacked, 8, TOGETHER,
                              [](auto isa) { return compute_repacked_of<decltype(isa), Format, TOGETHER>(); });
}

} // namespace

const std::vector<kernel> q2_Kx8_kernels = repacked<q2_K>("q2_Kx8", GGML_TYPE_Q2_K);
const std::vector<kernel> q4_Kx8_kernels = repacked<q4_K>("q4_Kx8", GGML_TYPE_Q4_K);
#if defined(__aarch64__)
const std::vector<kernel> q4_K_8x4_kernels = repacked<q4_K, 4>("q4_K_8x4", GGML_TYPE_Q4_K);
const std::vector<kernel> q5_K_8x4_kernels = repacked<q5_K, 4>("q5_K_8x4", GGML_TYPE_Q5_K);
const std::vector<kernel> q5_K_8x8_kernels = repacked<q5_K>("q5_K_8x8", GGML_TYPE_Q5_K);
const std::vector<kernel> q6_K_8x4_kernels = repacked<q6_K, 4>("q6_K_8x4", GGML_TYPE_Q6_K);
const std::vector<kernel> q6_K_8x8_kernels = repacked<q6_K>("q6_K_8x8", GGML_TYPE_Q6_K);
#endif
const std::vector<kernel> q2_K_kernels = mapped<q2_K>("q2_K", GGML_TYPE_Q2_K);
const std::vector<kernel> q3_K_kernels = mapped<q3_K>("q3_K", GGML_TYPE_Q3_K);
const std::vector<kernel> q4_K_kernels = mapped<q4_K>("q4_K", GGML_TYPE_Q4_K);
const std::vector<kernel> q5_K_kernels = mapped<q5_K>("q5_K", GGML_TYPE_Q5_K);
const std::vector<kernel> q6_K_kernels = mapped<q6_K>("q6_K", GGML_TYPE_Q6_K);

} // namespace eagle3::kernels
#endif
