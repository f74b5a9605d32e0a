// Attention of a few rows over a deep cache. Each block of K and of V is read and converted once for all rows and all
// heads that share it. Scores are sums over channels in one order; sums over cells are exact (attention_product.cpp).
// So a row's result depends neither on other rows, nor on threads, nor on where its cells lie.
#include "kernels/attention.h"

#include "kernels/attention_exp.h"
#include "kernels/floats_avx2.h"
#include "kernels/op_rows.h"
#include "kernels/rounding.h"

#ifdef EAGLE3_HAS_KERNELS

#include <algorithm>
#include <cmath>
#include <limits>

namespace eagle3::kernels {

namespace {

using namespace avx2;

constexpr int64_t N_CELLS        = 32;       // of a block
constexpr int64_t N_CHANNELS     = 32;       // of values that are converted at a time
constexpr int64_t N_ROWS         = 48;       // whose sums are kept at a time
constexpr int64_t N_BYTES_SCORES = 16 << 20; // about, of all rows that are computed at a time
constexpr float   INF            = std::numeric_limits<float>::infinity();

// Where sums begin: up to 2,048 to either side they are exact, if the processor rounds downwards
// (attention_product.cpp).
constexpr double MIDDLE = 6144.0;

int64_t padded(int64_t n, int64_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

// values [begin, begin + n) of a row in the cache's type; n is a multiple of 8, begin of the type's block
AVX2 void to_f32(ggml_type type, const char * row, int64_t begin, int64_t n, float * out) {
    const char * x = row + ggml_row_size(type, begin);
    if (type == GGML_TYPE_F32) {
        std::memcpy(out, x, n * sizeof(float));
    } else if (type == GGML_TYPE_F16) {
        for (int64_t i = 0; i < n; i += 8) {
            _mm256_storeu_ps(out + i, f16::load8(x, i));
        }
    } else {
        ggml_get_type_traits(type)->to_float(x, out, n);
    }
}

// the sums of four vectors, each in the same order
AVX2_INLINE __m128 sum4(__m256 a, __m256 b, __m256 c, __m256 d) {
    const __m256 halves = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    return _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1));
}

// n rows of queries times a block of keys [N_CELLS][n_dims]
template <int n>
AVX2 void multiply_keys(const float * keys, int64_t n_dims, const float * const * queries, float * const * out) {
    for (int64_t cell = 0; cell < N_CELLS; cell += 4) {
        const float * k = keys + cell * n_dims;
        __m256        sums[4][n];
        for (auto & row : sums) {
            std::fill(row, row + n, _mm256_setzero_ps());
        }
        for (int64_t i = 0; i < n_dims; i += 8) {
            __m256 q[n];
            for (int r = 0; r < n; ++r) {
                q[r] = _mm256_loadu_ps(queries[r] + i);
            }
            for (int c = 0; c < 4; ++c) {
                const __m256 w = _mm256_loadu_ps(k + c * n_dims + i);
                for (int r = 0; r < n; ++r) {
                    sums[c][r] = _mm256_fmadd_ps(w, q[r], sums[c][r]);
                }
            }
        }
        for (int r = 0; r < n; ++r) {
            _mm_storeu_ps(out[r] + cell, sum4(sums[0][r], sums[1][r], sums[2][r], sums[3][r]));
        }
    }
}

// n rows of weights of a block of cells [N_CELLS][N_ROWS] times 16 channels of values [N_CELLS][N_CHANNELS]
template <int n>
AVX2_INLINE void add_values(const double * weights, const double * values, double * sums, int64_t stride) {
    __m256d s[n][4];
    for (int r = 0; r < n; ++r) {
        for (int c = 0; c < 4; ++c) {
            s[r][c] = _mm256_loadu_pd(sums + r * stride + 4 * c);
        }
    }
    for (int64_t cell = 0; cell < N_CELLS; ++cell) {
        __m256d p[n];
        for (int r = 0; r < n; ++r) {
            p[r] = _mm256_broadcast_sd(weights + cell * N_ROWS + r);
        }
        for (int c = 0; c < 4; ++c) {
            const __m256d v = _mm256_loadu_pd(values + cell * N_CHANNELS + 4 * c);
            for (int r = 0; r < n; ++r) {
                s[r][c] = _mm256_fmadd_pd(p[r], v, s[r][c]);
            }
        }
    }
    for (int r = 0; r < n; ++r) {
        for (int c = 0; c < 4; ++c) {
            _mm256_storeu_pd(sums + r * stride + 4 * c, s[r][c]);
        }
    }
}

// Not inlined: it stays between the changes of the mode of rounding.
AVX2 __attribute__((noinline)) void add_all(const double * weights, const double * values, int64_t n_rows,
                                            double * sums, int64_t stride) {
    for (int64_t half = 0; half < N_CHANNELS; half += 16) {
        for (int64_t r = 0; r < n_rows; r += 3) {
            double * s = sums + r * stride + half;
            n_rows - r >= 3   ? add_values<3>(weights + r, values + half, s, stride)
            : n_rows - r == 2 ? add_values<2>(weights + r, values + half, s, stride)
                              : add_values<1>(weights + r, values + half, s, stride);
        }
    }
}

AVX2 void add_downwards(const double * weights, const double * values, int64_t n_rows, double * sums, int64_t stride) {
    const rounding_downwards mode;
    add_all(weights, values, n_rows, sums, stride);
}

// Scores of a block: scaled, capped, and with what the mask adds. What is masked is not seen, whatever is there.
AVX2 void finish_scores(float * x, const float * mask, float scale, float cap, float slope) {
    const __m256 none = _mm256_set1_ps(-INF);
    for (int64_t i = 0; i < N_CELLS; i += 8) {
        __m256 y = _mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(scale));
        if (cap != 0.0f) { // tanh
            const __m256 sign = _mm256_and_ps(y, _mm256_set1_ps(-0.0f));
            const __m256 e    = exp8(_mm256_mul_ps(_mm256_set1_ps(-2.0f), _mm256_xor_ps(y, sign)));
            const __m256 one  = _mm256_set1_ps(1.0f);
            y                 = _mm256_div_ps(_mm256_sub_ps(one, e), _mm256_add_ps(one, e));
            y                 = _mm256_or_ps(_mm256_mul_ps(y, _mm256_set1_ps(cap)), sign);
        }
        const __m256 added = _mm256_loadu_ps(mask + i);
        y                  = _mm256_fmadd_ps(added, _mm256_set1_ps(slope), y);
        _mm256_storeu_ps(x + i, _mm256_blendv_ps(y, none, _mm256_cmp_ps(added, none, _CMP_EQ_OQ)));
    }
}

AVX2 float largest(const float * x, int64_t n) {
    __m256 max = _mm256_set1_ps(-INF);
    for (int64_t i = 0; i < n; i += 8) {
        max = _mm256_max_ps(max, _mm256_loadu_ps(x + i));
    }
    float lanes[8];
    _mm256_storeu_ps(lanes, max);
    return *std::max_element(lanes, lanes + 8);
}

// An operation and how it is divided.
struct attention {
    explicit attention(const ggml_tensor * op) :
        op(op), q(op->src[0]), k(op->src[1]), v(op->src[2]), mask(op->src[3]), sinks(op->src[4]),
        n_shared(q->ne[2] / k->ne[2]), n_cells(k->ne[1]), n_blocks((n_cells + N_CELLS - 1) / N_CELLS),
        n_padded(n_blocks * N_CELLS), n_sums(padded(v->ne[0], N_CHANNELS)),
        n_together(std::clamp<int64_t>(
            N_BYTES_SCORES / static_cast<int64_t>(sizeof(float) * q->ne[2] * q->ne[3] * n_padded), 1, q->ne[1])) {
        float options[3];
        std::memcpy(options, op->op_params, sizeof(options));
        cap      = options[2];
        scale    = cap != 0.0f ? options[0] / cap : options[0];
        max_bias = options[1];
    }

    size_t bytes_of_scores() const { return q->ne[2] * q->ne[3] * n_together * n_padded * sizeof(float); }

    // of each thread: keys of a block; or sums, weights and values
    size_t bytes_of_thread() const {
        const int64_t keys   = N_CELLS * k->ne[0] * sizeof(float);
        const int64_t values = (N_ROWS * n_sums + N_CELLS * N_ROWS + N_CELLS * N_CHANNELS) * sizeof(double);
        return padded(std::max(keys, values), 64);
    }

    const ggml_tensor *op, *q, *k, *v, *mask, *sinks;
    int64_t            n_shared; // heads that share one of K and V
    int64_t            n_cells, n_blocks, n_padded;
    int64_t            n_sums;     // channels of values, with those that fill up the last of them
    int64_t            n_together; // rows that are computed at a time
    float              scale, cap, max_bias;
};

// Some rows of the operation. Their scores lie by sequence, head, row and cell.
class part {
  public:
    part(const attention & a, int64_t first, float * scores, void * own) :
        a_(a), first_(first), n_(std::min(a.n_together, a.q->ne[1] - first)), scores_(scores), own_(own) {}

    int64_t n_rows() const { return a_.q->ne[2] * a_.q->ne[3] * n_; }

    // of a block of cells and all rows of the heads that share them
    void multiply_block(int64_t block, int64_t kv, int64_t i3) const {
        const int64_t n_rows = a_.n_shared * n_;
        const int64_t begin  = block * N_CELLS;
        const int64_t n      = std::min(N_CELLS, a_.n_cells - begin);
        float         mask[N_CELLS];
        bool          is_seen = false;
        for (int64_t r = 0; r < n_rows && !is_seen; ++r) {
            read_mask(head_of(kv, r), r % n_, i3, begin, n, mask);
            is_seen = largest(mask, N_CELLS) != -INF;
        }
        if (!is_seen) {
            for (int64_t r = 0; r < n_rows; ++r) {
                std::fill_n(scores(kv, r, i3) + begin, N_CELLS, -INF);
            }
            return;
        }
        const int64_t n_dims = a_.k->ne[0];
        auto *        keys   = static_cast<float *>(own_);
        for (int64_t c = 0; c < n; ++c) {
            to_f32(a_.k->type, at<const char>(a_.k, begin + c, kv, i3), 0, n_dims, keys + c * n_dims);
        }
        std::fill(keys + n * n_dims, keys + N_CELLS * n_dims, 0.0f);
        for (int64_t r = 0; r < n_rows; r += 3) {
            const float * queries[3];
            float *       out[3];
            const int64_t n_tile = std::min<int64_t>(3, n_rows - r);
            for (int64_t i = 0; i < n_tile; ++i) {
                queries[i] = at<const float>(a_.q, first_ + (r + i) % n_, head_of(kv, r + i), i3);
                out[i]     = scores(kv, r + i, i3) + begin;
            }
            n_tile == 3   ? multiply_keys<3>(keys, n_dims, queries, out)
            : n_tile == 2 ? multiply_keys<2>(keys, n_dims, queries, out)
                          : multiply_keys<1>(keys, n_dims, queries, out);
        }
        for (int64_t r = 0; r < n_rows; ++r) {
            const int64_t head = head_of(kv, r);
            read_mask(head, r % n_, i3, begin, n, mask);
            finish_scores(scores(kv, r, i3) + begin, mask, a_.scale, a_.cap, slope_of(head, a_.q->ne[2], a_.max_bias));
        }
    }

    // scores become weights
    void soft_max(int64_t row) const {
        float *       x    = scores_ + row * a_.n_padded;
        const int64_t head = row / n_ % a_.q->ne[2];
        float         max  = largest(x, a_.n_padded);
        const float   sink = a_.sinks ? static_cast<const float *>(a_.sinks->data)[head] : 0.0f;
        if (a_.sinks) {
            max = std::max(max, sink);
        }
        if (std::isinf(max)) { // a row that sees nothing
            std::fill_n(x, a_.n_padded, 0.0f);
            return;
        }
        double sum = exponentials(x, a_.n_padded, max);
        if (a_.sinks) {
            sum += std::exp(sink - max);
        }
        multiply_by(x, a_.n_padded, static_cast<float>(1.0 / sum));
    }

    // channels [begin, end) of the values, for all rows of the heads that share them
    void multiply_values(int64_t kv, int64_t i3, int64_t begin, int64_t end) const {
        for (int64_t row = 0; row < a_.n_shared * n_; row += N_ROWS) {
            multiply_values(kv, i3, begin, end, row, std::min(N_ROWS, a_.n_shared * n_ - row));
        }
    }

  private:
    int64_t head_of(int64_t kv, int64_t row) const { return kv * a_.n_shared + row / n_; }

    float * scores(int64_t kv, int64_t row, int64_t i3) const {
        return scores_ + ((i3 * a_.q->ne[2] + kv * a_.n_shared) * n_ + row) * a_.n_padded;
    }

    // what is added to a block's scores: nothing is seen after the last of the n cells
    AVX2 void read_mask(int64_t head, int64_t row, int64_t i3, int64_t begin, int64_t n, float * out) const {
        std::fill_n(out, N_CELLS, -INF);
        if (!a_.mask) {
            std::fill_n(out, n, 0.0f);
            return;
        }
        const auto * x = at<const char>(a_.mask, first_ + row, head % a_.mask->ne[2], i3 % a_.mask->ne[3]) + 2 * begin;
        int64_t      i = 0;
        for (; i + 8 <= n; i += 8) {
            _mm256_storeu_ps(out + i, f16::load8(x, i));
        }
        for (; i < n; ++i) {
            out[i] = ggml_fp16_to_fp32(read<ggml_fp16_t>(x + 2 * i));
        }
    }

    AVX2 void multiply_values(int64_t kv, int64_t i3, int64_t begin, int64_t end, int64_t row, int64_t n_rows) const {
        auto *        sums    = static_cast<double *>(own_);
        double *      weights = sums + N_ROWS * a_.n_sums;
        double *      values  = weights + N_CELLS * N_ROWS;
        const int64_t n_dims  = a_.v->ne[0];
        const float * p       = scores(kv, row, i3);
        std::fill_n(sums, n_rows * a_.n_sums, MIDDLE);
        for (int64_t cell = 0; cell < a_.n_cells; cell += N_CELLS) {
            const int64_t n        = std::min(N_CELLS, a_.n_cells - cell);
            float         heaviest = 0.0f;
            for (int64_t r = 0; r < n_rows; ++r) {
                heaviest = std::max(heaviest, largest(p + r * a_.n_padded + cell, N_CELLS));
            }
            if (heaviest == 0.0f) { // no row sees any of it
                continue;
            }
            for (int64_t r = 0; r < n_rows; ++r) {
                for (int64_t c = 0; c < N_CELLS; ++c) {
                    weights[c * N_ROWS + r] = p[r * a_.n_padded + cell + c];
                }
            }
            for (int64_t channel = begin; channel < end; channel += N_CHANNELS) {
                const int64_t n_channels = std::min(N_CHANNELS, n_dims - channel);
                std::fill_n(values, N_CELLS * N_CHANNELS, 0.0);
                for (int64_t c = 0; c < n; ++c) {
                    float converted[N_CHANNELS];
                    to_f32(a_.v->type, at<const char>(a_.v, cell + c, kv, i3), channel, n_channels, converted);
                    for (int64_t i = 0; i < n_channels; i += 4) {
                        _mm256_storeu_pd(values + c * N_CHANNELS + i, _mm256_cvtps_pd(_mm_loadu_ps(converted + i)));
                    }
                }
                add_downwards(weights, values, n_rows, sums + channel, a_.n_sums);
            }
        }
        for (int64_t r = 0; r < n_rows; ++r) {
            auto * out = at<float>(a_.op, head_of(kv, row + r), first_ + (row + r) % n_, i3);
            for (int64_t i = begin; i < std::min(end, n_dims); ++i) {
                out[i] = static_cast<float>(sums[r * a_.n_sums + i] - MIDDLE);
            }
        }
    }

    const attention & a_;
    int64_t           first_, n_; // rows
    float *           scores_;
    void *            own_; // this thread's memory
};

class flash_attention : public op_traits {
  public:
    bool work_size(int n_threads, const ggml_tensor * op, size_t & size) override {
        const attention a(op);
        size = a.bytes_of_scores() + n_threads * a.bytes_of_thread();
        return true;
    }

    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        const attention a(op);
        auto *          own   = static_cast<char *>(params->wdata) + params->ith * a.bytes_of_thread();
        auto *          first = static_cast<char *>(params->wdata) + params->nth * a.bytes_of_thread();
        for (int64_t row = 0; row < a.q->ne[1]; row += a.n_together) {
            compute(params, a, part(a, row, reinterpret_cast<float *>(first), own));
        }
        return true;
    }

  private:
    static void compute(const ggml_compute_params * params, const attention & a, const part & rows) {
        const int64_t n_kv    = a.k->ne[2];
        const int64_t n_slabs = n_kv * a.q->ne[3];
        libggml().barrier(params->threadpool); // others may still read scores of the rows before
        const auto [block, last_block] = share(params, n_slabs * a.n_blocks);
        for (int64_t i = block; i < last_block; ++i) { // a cell's heads lie one after another
            rows.multiply_block(i / n_kv % a.n_blocks, i % n_kv, i / n_kv / a.n_blocks);
        }
        libggml().barrier(params->threadpool);
        const auto [row, last_row] = share(params, rows.n_rows());
        for (int64_t i = row; i < last_row; ++i) {
            rows.soft_max(i);
        }
        libggml().barrier(params->threadpool);
        const int64_t n_groups      = a.n_sums / N_CHANNELS;
        const auto [group, n_total] = share(params, n_slabs * n_groups);
        for (int64_t i = group; i < n_total;) { // as many channels of a head as this thread has
            const int64_t begin = i % n_groups;
            const int64_t end   = std::min(n_groups, begin + n_total - i);
            const int64_t slab  = i / n_groups;
            rows.multiply_values(slab % n_kv, slab / n_kv, begin * N_CHANNELS, end * N_CHANNELS);
            i += end - begin;
        }
    }
};

bool is_readable(const ggml_tensor * cache) {
    const bool is_float = cache->type == GGML_TYPE_F32 || ggml_get_type_traits(cache->type)->to_float;
    // a quantized row is read 32 channels at a time
    return is_float && cache->nb[0] == ggml_type_size(cache->type) && cache->ne[0] % 8 == 0 &&
           N_CHANNELS % ggml_blck_size(cache->type) == 0;
}

} // namespace

op_traits * attention_flash(const ggml_tensor * op) {
    static flash_attention instance;

    const ggml_tensor * q        = op->src[0];
    const ggml_tensor * k        = op->src[1];
    const ggml_tensor * v        = op->src[2];
    const ggml_tensor * mask     = op->src[3];
    const bool          has_rows = q->type == GGML_TYPE_F32 && q->nb[0] == sizeof(float) && op->type == GGML_TYPE_F32 &&
                                   q->ne[1] * q->ne[3] <= N_ATTENTION_ROWS_MAX;
    const bool          has_heads = k->ne[2] == v->ne[2] && k->ne[3] == q->ne[3] && v->ne[3] == q->ne[3] &&
                                    q->ne[2] % k->ne[2] == 0 && k->ne[1] == v->ne[1];
    const bool          has_mask  = !mask || (mask->type == GGML_TYPE_F16 && mask->nb[0] == sizeof(ggml_fp16_t));
    return has_rows && has_heads && has_mask && is_readable(k) && is_readable(v) && is_supported() ? &instance
                                                                                                   : nullptr;
}

} // namespace eagle3::kernels

#else

namespace eagle3::kernels {

op_traits * attention_flash(const ggml_tensor *) {
    return nullptr;
}

} // namespace eagle3::kernels
#endif
