// Sums over cells of the cache are exact, so that they do not depend on the order of the cells: all terms are rounded
// to multiples of one quantum, and a double holds their sum. Sums over channels are taken in one order.
#include "kernels/attention.h"

#include "kernels/floats_avx2.h"
#include "kernels/op_rows.h"
#include "kernels/rounding.h"

#ifdef EAGLE3_HAS_KERNELS

#include <algorithm>

namespace eagle3::kernels {

namespace {

using namespace avx2;

constexpr int64_t N_CELLS           = 32; // cells that a thread multiplies by all rows at a time
constexpr int     N_TOGETHER        = 4;  // channels or cells of a tile
constexpr int     N_CHANNELS        = 16; // in sums over cells: channels that a thread multiplies at a time
constexpr int     N_ROWS            = 24; // by so many rows
constexpr int64_t N_CELLS_CONVERTED = 128;

struct f64 {
    static constexpr size_t SIZE = 8;

    AVX2_INLINE static __m256d load4(const char * p, int64_t i) {
        return _mm256_loadu_pd(reinterpret_cast<const double *>(p + 8 * i));
    }
};

// A few rows of a matrix, a few rows that are multiplied by them, and where results go. `w`: the matrix's first row.
struct tile {
    const char * w;
    size_t       stride; // bytes from one row of the matrix to the next
    int64_t      k;
    const char * x[3]; // rows, in the matrix's type
    float *      out[3];
};

// How many of the rows that are left make the next tile: two pairs are faster than three and one.
int n_rows_together(int64_t left) {
    return left >= 5 || left == 3 ? 3 : left >= 2 ? 2 : 1;
}

template <class format, int n_w, int n_rows>
AVX2 void multiply_in_order(const tile & t) {
    __m256 sums[n_w][n_rows];
    for (auto & row : sums) {
        std::fill(row, row + n_rows, _mm256_setzero_ps());
    }
    for (int64_t i = 0; i < t.k; i += 8) {
        __m256 x[n_rows];
        for (int r = 0; r < n_rows; ++r) {
            x[r] = format::load8(t.x[r], i);
        }
        for (int c = 0; c < n_w; ++c) {
            const __m256 w = format::load8(t.w + c * t.stride, i);
            for (int r = 0; r < n_rows; ++r) {
                sums[c][r] = _mm256_fmadd_ps(w, x[r], sums[c][r]);
            }
        }
    }
    for (int r = 0; r < n_rows; ++r) {
        if constexpr (n_w == N_TOGETHER) {
            _mm_storeu_ps(t.out[r], sum4(sums[0][r], sums[1][r], sums[2][r], sums[3][r]));
        } else {
            *t.out[r] = _mm_cvtss_f32(sum4(sums[0][r], sums[0][r], sums[0][r], sums[0][r]));
        }
    }
}

// A double between 2^12 and 2^13 is a multiple of 2^-40. A sum begins in the middle of this range and stays in it while
// the terms add up to at most 2,048; each term is rounded downwards to such a multiple. So the sum is exact, whatever
// the order. Greater sums are as accurate as any, but depend on the order.
constexpr double MIDDLE = 6144.0;

// A block's sums over cells, each in four parts.
using block_sums = __m256d[N_CHANNELS][N_ROWS];

// Adds a tile's products to the sums from this channel and row on, while the processor rounds downwards.
template <class format, int n_w, int n_rows>
AVX2_INLINE void add_downwards(const tile & t, block_sums & all, int channel, int row) {
    // with one row, two parts of each sum hide the latency of additions
    constexpr int n_parts = n_rows == 1 ? 2 : 1;
    __m256d       sums[n_w][n_rows][n_parts];
    for (auto & sums_of_channel : sums) {
        for (auto & parts : sums_of_channel) {
            std::fill(parts, parts + n_parts, _mm256_set1_pd(MIDDLE));
        }
    }
    for (int64_t i = 0; i < t.k; i += 4 * n_parts) {
        for (int part = 0; part < n_parts; ++part) {
            __m256d x[n_rows];
            for (int r = 0; r < n_rows; ++r) {
                x[r] = format::load4(t.x[r], i + 4 * part);
            }
            for (int c = 0; c < n_w; ++c) {
                const __m256d w = format::load4(t.w + c * t.stride, i + 4 * part);
                for (int r = 0; r < n_rows; ++r) {
                    sums[c][r][part] = _mm256_fmadd_pd(w, x[r], sums[c][r][part]);
                }
            }
        }
    }
    for (int c = 0; c < n_w; ++c) {
        for (int r = 0; r < n_rows; ++r) {
            for (const __m256d & part : sums[c][r]) {
                __m256d & sum = all[channel + c][row + r];
                sum           = _mm256_add_pd(sum, _mm256_sub_pd(part, _mm256_set1_pd(MIDDLE)));
            }
        }
    }
}

// Channels of a matrix of values, and rows of the cells' weights, both of one type.
struct block {
    const char * w;      // the first channel
    size_t       stride; // bytes from one channel to the next
    int          n_w;    // at most N_CHANNELS
    int64_t      k;
    const char * x[N_ROWS];
    float *      out[N_ROWS]; // the row's first channel
    int          n_rows;
};

template <class format>
AVX2_INLINE void add_block(const block & b, block_sums & sums) {
    for (int c = 0; c < b.n_w;) {
        const bool is_whole = b.n_w - c >= N_TOGETHER;
        for (int r = 0; r < b.n_rows;) {
            const int n = n_rows_together(b.n_rows - r);
            tile      t = { b.w + c * b.stride, b.stride, b.k, {}, {} };
            std::copy(b.x + r, b.x + r + n, t.x);
            if (is_whole) {
                n == 3   ? add_downwards<format, N_TOGETHER, 3>(t, sums, c, r)
                : n == 2 ? add_downwards<format, N_TOGETHER, 2>(t, sums, c, r)
                         : add_downwards<format, N_TOGETHER, 1>(t, sums, c, r);
            } else {
                n == 3   ? add_downwards<format, 1, 3>(t, sums, c, r)
                : n == 2 ? add_downwards<format, 1, 2>(t, sums, c, r)
                         : add_downwards<format, 1, 1>(t, sums, c, r);
            }
            r += n;
        }
        c += is_whole ? N_TOGETHER : 1;
    }
}

template <class format>
AVX2_INLINE void to_f64(const char * x, int64_t n, double * y) {
    for (int64_t i = 0; i < n; i += 4) {
        _mm256_storeu_pd(y + i, format::load4(x, i));
    }
}

// Not inlined, so that the compiler moves nothing out from between the two changes of the rounding mode.
template <class format>
AVX2 __attribute__((noinline)) void add_all(const block & b, block_sums & sums) {
    if (b.n_rows <= 3) { // each value is used once: converting it first would not pay
        return add_block<format>(b, sums);
    }
    double w[N_CHANNELS][N_CELLS_CONVERTED];
    double x[N_ROWS][N_CELLS_CONVERTED];
    block  part = { reinterpret_cast<const char *>(w), sizeof(w[0]), b.n_w, 0, {}, {}, b.n_rows };
    for (int64_t i = 0; i < b.k; i += N_CELLS_CONVERTED) {
        part.k = std::min<int64_t>(N_CELLS_CONVERTED, b.k - i);
        for (int c = 0; c < b.n_w; ++c) {
            to_f64<format>(b.w + c * b.stride + i * format::SIZE, part.k, w[c]);
        }
        for (int r = 0; r < b.n_rows; ++r) {
            to_f64<format>(b.x[r] + i * format::SIZE, part.k, x[r]);
            part.x[r] = reinterpret_cast<const char *>(x[r]);
        }
        add_block<f64>(part, sums);
    }
}

template <class format>
AVX2 void multiply_exactly(const block & b) {
    block_sums sums = {};
    {
        const rounding_downwards mode;
        add_all<format>(b, sums);
    }
    for (int c = 0; c < b.n_w; ++c) {
        for (int r = 0; r < b.n_rows; ++r) {
            double lanes[4];
            _mm256_storeu_pd(lanes, sums[c][r]);
            b.out[r][c] = static_cast<float>(lanes[0] + lanes[1] + lanes[2] + lanes[3]);
        }
    }
}

using tile_function = void (*)(const tile &);

// [rows of the matrix: 1 or N_TOGETHER][rows - 1]
template <class format>
constexpr tile_function TILES[2][3] = {
    { multiply_in_order<format, 1, 1>, multiply_in_order<format, 1, 2>, multiply_in_order<format, 1, 3> },
    { multiply_in_order<format, N_TOGETHER, 1>, multiply_in_order<format, N_TOGETHER, 2>,
      multiply_in_order<format, N_TOGETHER, 3> },
};

bool is_over_cells(const ggml_tensor * op) {
    return op->src[1]->op == GGML_OP_SOFT_MAX;
}

// Rounds a row to F16 for a matrix in F16, as ggml does.
AVX2 void to_f16(const float * x, int64_t k, char * row) {
    for (int64_t i = 0; i < k; i += 8) {
        const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128(reinterpret_cast<__m128i *>(row + 2 * i), half);
    }
}

class product_of_attention : public op_traits {
  public:
    bool work_size(int, const ggml_tensor * op, size_t & size) override {
        size = op->src[0]->type == GGML_TYPE_F16 ? ggml_nelements(op->src[1]) * sizeof(ggml_fp16_t) : 0;
        return true;
    }

    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        const ggml_tensor * w    = op->src[0];
        const ggml_tensor * x    = op->src[1];
        char *              rows = nullptr;
        if (w->type == GGML_TYPE_F16) {
            rows = static_cast<char *>(params->wdata);
            for (int64_t r = params->ith; r < ggml_nrows(x); r += params->nth) {
                const int64_t slab = r / x->ne[1];
                to_f16(at<const float>(x, r % x->ne[1], slab % x->ne[2], slab / x->ne[2]), x->ne[0],
                       rows + r * x->ne[0] * sizeof(ggml_fp16_t));
            }
            libggml().barrier(params->threadpool);
        }
        const bool    exactly    = is_over_cells(op);
        const int64_t n_block    = exactly ? N_CHANNELS : N_CELLS;
        const int64_t n_blocks   = (w->ne[1] + n_block - 1) / n_block;
        const auto [first, last] = share(params, w->ne[2] * w->ne[3] * n_blocks);
        for (int64_t i = first; i < last; ++i) { // in the order of memory: by cell and head, or by head and channel
            const int64_t slab  = exactly ? i / n_blocks : i / n_blocks / w->ne[2] * w->ne[2] + i % w->ne[2];
            const int64_t begin = (exactly ? i % n_blocks : i / w->ne[2] % n_blocks) * n_block;
            const int64_t end   = std::min(begin + n_block, w->ne[1]);
            if (exactly) {
                multiply_channels(op, rows, slab, begin, static_cast<int>(end - begin));
            } else {
                multiply_cells(op, rows, slab, begin, end);
            }
        }
        return true;
    }

  private:
    // One of the matrices and the rows that are multiplied by it. rows: those in F16, or null.
    struct slab_of {
        slab_of(const ggml_tensor * op, const char * rows, int64_t slab) :
            op(op), x(op->src[1]), rows(rows), w2(slab % op->src[0]->ne[2]), w3(slab / op->src[0]->ne[2]),
            n2(x->ne[2] / op->src[0]->ne[2]), n_rows(x->ne[1] * n2 * (x->ne[3] / op->src[0]->ne[3])) {}

        const char * matrix(int64_t i) const { return at<const char>(op->src[0], i, w2, w3); }

        void row(int64_t i, const char *& in, float *& out) const {
            const int64_t i1 = i % x->ne[1];
            const int64_t i2 = w2 * n2 + i / x->ne[1] % n2;
            const int64_t i3 = w3 * (x->ne[3] / op->src[0]->ne[3]) + i / x->ne[1] / n2;
            in               = rows ? rows + ((i3 * x->ne[2] + i2) * x->ne[1] + i1) * x->ne[0] * sizeof(ggml_fp16_t)
                                    : at<const char>(x, i1, i2, i3);
            out              = at<float>(op, i1, i2, i3);
        }

        const ggml_tensor * op;
        const ggml_tensor * x;
        const char *        rows;
        int64_t             w2, w3;
        int64_t             n2; // heads that share the matrix
        int64_t             n_rows;
    };

    static void multiply_cells(const ggml_tensor * op, const char * rows, int64_t slab, int64_t begin, int64_t end) {
        const ggml_tensor * w     = op->src[0];
        const auto &        tiles = w->type == GGML_TYPE_F16 ? TILES<f16> : TILES<f32>;
        const slab_of       from(op, rows, slab);
        tile                t = { nullptr, w->nb[1], w->ne[0], {}, {} };
        for (int64_t row = 0; row < from.n_rows;) {
            const int n = n_rows_together(from.n_rows - row);
            float *   out[3];
            for (int r = 0; r < n; ++r, ++row) {
                from.row(row, t.x[r], out[r]);
            }
            for (int64_t c = begin; c < end;) {
                const bool is_whole = end - c >= N_TOGETHER;
                t.w                 = from.matrix(c);
                for (int r = 0; r < n; ++r) {
                    t.out[r] = out[r] + c;
                }
                tiles[is_whole][n - 1](t);
                c += is_whole ? N_TOGETHER : 1;
            }
        }
    }

    static void multiply_channels(const ggml_tensor * op, const char * rows, int64_t slab, int64_t begin, int n) {
        const ggml_tensor * w = op->src[0];
        const slab_of       from(op, rows, slab);
        block               b = { from.matrix(begin), w->nb[1], n, w->ne[0], {}, {}, 0 };
        for (int64_t row = 0; row < from.n_rows; row += b.n_rows) {
            b.n_rows = static_cast<int>(std::min<int64_t>(N_ROWS, from.n_rows - row));
            for (int r = 0; r < b.n_rows; ++r) {
                from.row(row + r, b.x[r], b.out[r]);
                b.out[r] += begin;
            }
            w->type == GGML_TYPE_F16 ? multiply_exactly<f16>(b) : multiply_exactly<f32>(b);
        }
    }
};

} // namespace

op_traits * attention_product(const ggml_tensor * op) {
    static product_of_attention instance;
    constexpr int32_t           hint_of_hadamard = 1; // GGML_HINT_SRC0_IS_HADAMARD

    const ggml_tensor * w = op->src[0];
    const ggml_tensor * x = op->src[1];
    const bool          has_types =
        (w->type == GGML_TYPE_F16 || w->type == GGML_TYPE_F32) && x->type == GGML_TYPE_F32 && op->type == GGML_TYPE_F32;
    const bool is_dense =
        w->nb[0] == ggml_type_size(w->type) && x->nb[0] == sizeof(float) && op->nb[0] == sizeof(float);
    const bool is_plain =
        op->op_params[1] != hint_of_hadamard && w->ne[0] % 8 == 0 && x->ne[1] * x->ne[3] <= N_ATTENTION_ROWS_MAX;
    return has_types && is_dense && is_plain && is_supported() ? &instance : nullptr;
}

} // namespace eagle3::kernels
#endif
