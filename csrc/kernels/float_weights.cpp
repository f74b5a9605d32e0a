// Multiplies F16, BF16 and F32 weights by rows in float32: four channels by up to three rows at a time. If the rows do
// not fit into a core's cache, some inputs at a time: the sums of eight lanes then go on where they ended.
#include "kernels/avx2.h"
#include "kernels/float_weights_avx512.h"
#include "kernels/formats.h"

#ifdef EAGLE3_HAS_KERNELS

#include <algorithm>

namespace eagle3::kernels {

namespace {

using namespace avx2;

// An odd number of cache lines, see q8_row_size.
size_t row_size(int64_t k) {
    return (((k * sizeof(float) + 63) / 64) | 1) * 64;
}

void copy(const float * x, int64_t k, uint8_t * row) {
    std::memcpy(row, x, k * sizeof(float));
}

// A format unpacks n_inputs weights to n_vectors of eight floats. `quantize` copies a row in the order of these.

struct f32 {
    static constexpr int64_t n_bytes   = 4;
    static constexpr int64_t n_inputs  = 8;
    static constexpr int     n_vectors = 1;

    AVX2_INLINE static __m256 unpack(const uint8_t * p, int /*vector*/) {
        return _mm256_loadu_ps(reinterpret_cast<const float *>(p));
    }

    static void quantize(const float * x, int64_t k, uint8_t * row) { copy(x, k, row); }
};

struct f16 {
    static constexpr int64_t n_bytes   = 2;
    static constexpr int64_t n_inputs  = 8;
    static constexpr int     n_vectors = 1;

    AVX2_INLINE static __m256 unpack(const uint8_t * p, int /*vector*/) { return _mm256_cvtph_ps(load128(p)); }

    static void quantize(const float * x, int64_t k, uint8_t * row) { copy(x, k, row); }
};

// Even inputs come first, then odd ones: these are the low and high halves of 32 bits.
struct bf16 {
    static constexpr int64_t n_bytes   = 2;
    static constexpr int64_t n_inputs  = 16;
    static constexpr int     n_vectors = 2;

    AVX2_INLINE static __m256 unpack(const uint8_t * p, int vector) {
        const __m256i both = load256(p);
        return _mm256_castsi256_ps(vector == 0 ? _mm256_slli_epi32(both, 16)
                                               : _mm256_and_si256(both, _mm256_set1_epi32(~0xffff)));
    }

    static void quantize(const float * x, int64_t k, uint8_t * row) {
        auto * y = reinterpret_cast<float *>(row);
        for (int64_t i = 0; i < k; i += 16) {
            for (int j = 0; j < 8; ++j) {
                y[i + j]     = x[i + 2 * j];
                y[i + 8 + j] = x[i + 2 * j + 1];
            }
        }
    }
};

constexpr int64_t K_BLOCK    = 1024;      // inputs that are multiplied at a time if rows do not fit into a core's cache
constexpr size_t  N_BYTES_L2 = 256 << 10; // bytes of that cache for rows
constexpr int64_t N_ROWS     = 32;        // rows of a block
constexpr int64_t N_CHANNELS = 64;        // channels of a block

// Some channels, rows and inputs of a product. Strides are those of the whole matrices.
struct tile {
    const uint8_t * weights; // of the first channel
    int64_t         k;
    const uint8_t * rows;
    int64_t         begin, end; // inputs
    __m256 *        sums;       // [channel][N_ROWS]: sums over the inputs before `begin`, then before `end`
    float *         out;
    int64_t         ldo;
};

// prefetches: whether to prefetch the next channels' weights, as processors do not for several channels at once.
template <class format, int n_channels, int n_rows, bool prefetches>
AVX2 void compute_tile(const tile & t) {
    const size_t row_bytes = row_size(t.k);
    __m256       sums[n_channels][n_rows];
    for (int c = 0; c < n_channels; ++c) {
        for (int r = 0; r < n_rows; ++r) {
            sums[c][r] = t.begin > 0 ? t.sums[c * N_ROWS + r] : _mm256_setzero_ps();
        }
    }
    for (int64_t i = t.begin; i < t.end; i += format::n_inputs) {
        for (int c = 0; prefetches && i * format::n_bytes % 64 == 0 && c < n_channels; ++c) {
            _mm_prefetch(reinterpret_cast<const char *>(t.weights + format::n_bytes * ((c + n_channels) * t.k + i)),
                         _MM_HINT_T0);
        }
        for (int v = 0; v < format::n_vectors; ++v) {
            __m256 y[n_rows];
            for (int r = 0; r < n_rows; ++r) {
                y[r] = _mm256_loadu_ps(reinterpret_cast<const float *>(t.rows + r * row_bytes) + i + 8 * v);
            }
            for (int c = 0; c < n_channels; ++c) {
                const __m256 w = format::unpack(t.weights + format::n_bytes * (c * t.k + i), v);
                for (int r = 0; r < n_rows; ++r) {
                    sums[c][r] = _mm256_fmadd_ps(w, y[r], sums[c][r]);
                }
            }
        }
    }
    for (int c = 0; c < n_channels; ++c) {
        for (int r = 0; r < n_rows; ++r) {
            if (t.end < t.k) {
                t.sums[c * N_ROWS + r] = sums[c][r];
            } else {
                t.out[r * t.ldo + c] = sum(sums[c][r]);
            }
        }
    }
}

template <class format, int n_channels, bool prefetches>
constexpr auto tile_of(int n_rows) {
    return n_rows == 3   ? compute_tile<format, n_channels, 3, prefetches>
           : n_rows == 2 ? compute_tile<format, n_channels, 2, prefetches>
                         : compute_tile<format, n_channels, 1, prefetches>;
}

// Multiplies a tile's channels by all of a block's rows.
template <class format, int n_channels>
void compute_channels(tile t, int64_t n_rows) {
    for (bool is_first = true; n_rows > 0; is_first = false) {
        const int n = n_rows >= 5 || n_rows == 3 ? 3 : n_rows >= 2 ? 2 : 1; // two pairs are faster than three and one
        (is_first ? tile_of<format, n_channels, true>(n) : tile_of<format, n_channels, false>(n))(t);
        t.rows += n * row_size(t.k);
        t.sums += n;
        t.out += n * t.ldo;
        n_rows -= n;
    }
}

template <class format>
AVX2 void compute(const uint8_t * weights, int64_t k, const uint8_t * rows, int64_t n_rows, int64_t first, int64_t last,
                  float * out, int64_t ldo) {
    const size_t  row_bytes = row_size(k);
    const int64_t n_inputs  = n_rows * row_bytes <= N_BYTES_L2 ? k : K_BLOCK;
    __m256        sums[N_CHANNELS * N_ROWS];
    for (int64_t r = 0; r < n_rows; r += N_ROWS) {
        for (int64_t begin_c = first; begin_c < last; begin_c += N_CHANNELS) {
            const int64_t end_c = std::min(begin_c + N_CHANNELS, last);
            for (int64_t begin = 0; begin < k; begin += n_inputs) {
                tile t = { nullptr, k, rows + r * row_bytes, begin, std::min(begin + n_inputs, k), sums, nullptr, ldo };
                for (int64_t c = begin_c; c < end_c;) {
                    t.weights           = weights + format::n_bytes * c * k;
                    t.sums              = sums + (c - begin_c) * N_ROWS;
                    t.out               = out + r * ldo + c;
                    const bool is_whole = end_c - c >= 4;
                    is_whole ? compute_channels<format, 4>(t, std::min(N_ROWS, n_rows - r))
                             : compute_channels<format, 1>(t, std::min(N_ROWS, n_rows - r));
                    c += is_whole ? 4 : 1;
                }
            }
        }
    }
}

#if defined(__x86_64__)
template <class format>
void compute_wide(const uint8_t * weights, int64_t k, const uint8_t * rows, int64_t n_rows, int64_t first, int64_t last,
                  float * out, int64_t ldo) {
    const size_t row_bytes = row_size(k);
    for (; first + 4 <= last; first += 4) {
        avx512::compute_float_channels<format, 4>(weights + format::n_bytes * first * k, k, rows, row_bytes, n_rows,
                                                  out + first, ldo);
    }
    for (; first < last; ++first) {
        avx512::compute_float_channels<format, 1>(weights + format::n_bytes * first * k, k, rows, row_bytes, n_rows,
                                                  out + first, ldo);
    }
}

template <class format, class wide_format>
std::vector<kernel> wide_kernels(const std::string & name, ggml_type type) {
    return { { name + "/avx512", type, layout::mapped, 1, format::n_inputs, 0, avx512::has_floats, row_size, copy,
               compute_wide<wide_format> } };
}
#endif

#if defined(__x86_64__)
constexpr const char * INSTRUCTION_SET = "/avx2";
#else
constexpr const char * INSTRUCTION_SET = "/neon";
#endif

template <class format>
std::vector<kernel> float_kernels(const std::string & name, ggml_type type, std::vector<kernel> kernels = {}) {
    kernels.push_back({ name + INSTRUCTION_SET, type, layout::mapped, 1, format::n_inputs, 0, is_supported, row_size,
                        format::quantize, compute<format>, K_BLOCK });
    return kernels;
}

} // namespace

#if defined(__x86_64__)
const std::vector<kernel> f16_kernels =
    float_kernels<f16>("f16", GGML_TYPE_F16, wide_kernels<f16, avx512::f16>("f16", GGML_TYPE_F16));
const std::vector<kernel> bf16_kernels =
    float_kernels<bf16>("bf16", GGML_TYPE_BF16, wide_kernels<bf16, avx512::bf16>("bf16", GGML_TYPE_BF16));
const std::vector<kernel> f32_kernels =
    float_kernels<f32>("f32", GGML_TYPE_F32, wide_kernels<f32, avx512::f32>("f32", GGML_TYPE_F32));
#else
const std::vector<kernel> f16_kernels  = float_kernels<f16>("f16", GGML_TYPE_F16);
const std::vector<kernel> bf16_kernels = float_kernels<bf16>("bf16", GGML_TYPE_BF16);
const std::vector<kernel> f32_kernels  = float_kernels<f32>("f32", GGML_TYPE_F32);
#endif

} // namespace eagle3::kernels
#endif
