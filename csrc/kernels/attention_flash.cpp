// Attention over a deep cache. Each block of K and of V is read and converted once for all rows, or all of a tile, and
// all heads that share it. Scores are sums over channels in one order; sums over cells are exact
// (attention_product.cpp) in passes of few rows. So a row's result depends neither on other rows, nor on threads, nor
// on where its cells lie. Tiles of prompts are summed in the order of the cells.
#include "kernels/attention.h"

#include "kernels/attention_exp.h"
#include "kernels/attention_keys.h"
#include "kernels/attention_values.h"
#include "kernels/floats_avx2.h"
#include "kernels/op_rows.h"

#ifdef EAGLE3_HAS_KERNELS

#include <algorithm>
#include <cmath>
#include <limits>

namespace eagle3::kernels {

namespace {

using namespace avx2;

constexpr int64_t N_CHANNELS     = 32;       // of values that a thread takes, at least
constexpr int64_t N_ROWS_DIRECT  = 12;       // more rows read keys that were converted
constexpr int64_t N_BYTES_SCORES = 16 << 20; // about, of all rows that are computed at a time
constexpr float   INF            = std::numeric_limits<float>::infinity();

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
        n_padded(n_blocks * N_CELLS), n_scores(padded(n_padded, 32) + 16), n_sums(padded(v->ne[0], N_CHANNELS)),
        is_tiled(q->ne[1] * q->ne[3] > N_ATTENTION_ROWS_MAX), n_together(is_tiled ? rows_of_tile() : rows_that_fit()) {
        float options[3];
        std::memcpy(options, op->op_params, sizeof(options));
        cap      = options[2];
        scale    = cap != 0.0f ? options[0] / cap : options[0];
        max_bias = options[1];
    }

    // of all rows that are computed at a time
    size_t bytes_of_scores() const {
        return is_tiled ? 0 : padded(q->ne[2] * q->ne[3] * n_together * n_scores * sizeof(float), 64);
    }

    // of a thread's tile of rows
    size_t bytes_of_tile() const { return is_tiled ? padded(n_shared * n_together * n_scores * sizeof(float), 64) : 0; }

    // of each thread: scores of its tile, and keys of a block; or sums, weights and values
    size_t bytes_of_thread() const {
        const int64_t keys   = N_CELLS * k->ne[0] * sizeof(float);
        const int64_t values = (N_ROWS * n_sums + N_CELLS * N_ROWS) * sizeof(double) + N_CELLS * n_sums * sizeof(float);
        return bytes_of_tile() + padded(std::max(keys, values), 64);
    }

    const ggml_tensor *op, *q, *k, *v, *mask, *sinks;
    int64_t            n_shared; // heads that share one of K and V
    int64_t            n_cells, n_blocks, n_padded;
    int64_t            n_scores;   // from one row's to the next one's: an odd number of cache lines
    int64_t            n_sums;     // channels of values, with those that fill up the last of them
    bool               is_tiled;   // does each thread compute rows of its own, or do all share some?
    int64_t            n_together; // rows that are computed at a time
    float              scale, cap, max_bias;

  private:
    int64_t rows_of_tile() const { return std::clamp<int64_t>(N_ROWS / n_shared, 1, q->ne[1]); }

    int64_t rows_that_fit() const {
        const auto n_bytes = static_cast<int64_t>(sizeof(float) * q->ne[2] * q->ne[3] * n_scores);
        return std::clamp<int64_t>(N_BYTES_SCORES / n_bytes, 1, q->ne[1]);
    }
};

// Some rows of the operation. Their scores lie by sequence, head, row and cell; of a tile there are those of one head
// of K and V alone.
class part {
  public:
    part(const attention & a, int64_t first, float * scores, void * own) :
        a_(a), first_(first), n_(std::min(a.n_together, a.q->ne[1] - first)), scores_(scores), own_(own) {}

    int64_t n_rows() const { return a_.n_shared * n_; } // of the heads that share one of K and V

    // of a block of cells and all rows of the heads that share them
    void multiply_block(int64_t block, int64_t kv, int64_t i3) const {
        const int64_t n_rows = this->n_rows();
        const int64_t begin  = block * N_CELLS;
        const int64_t n      = std::min(N_CELLS, a_.n_cells - begin);
        float         mask[N_CELLS];
        bool          is_seen = false;
        for (int64_t r = 0; r < (a_.mask && a_.mask->ne[2] > 1 ? n_rows : n_) && !is_seen; ++r) {
            read_mask(head_of(kv, r), r % n_, i3, begin, n, mask);
            is_seen = largest(mask, N_CELLS) != -INF;
        }
        if (!is_seen) {
            for (int64_t r = 0; r < n_rows; ++r) {
                std::fill_n(scores(kv, r, i3) + begin, N_CELLS, -INF);
            }
            return;
        }
        const int64_t n_dims    = a_.k->ne[0];
        const char *  lying     = at<const char>(a_.k, begin, kv, i3);
        auto *        converted = static_cast<float *>(own_);
        const bool    is_direct = a_.k->type == GGML_TYPE_F16 && n_rows <= N_ROWS_DIRECT;
        for (int64_t c = 0; c < (is_direct ? 0 : n); ++c) {
            to_f32(a_.k->type, lying + c * a_.k->nb[1], 0, n_dims, converted + c * n_dims);
        }
        block_of_keys keys{ reinterpret_cast<const char *>(converted), n_dims * sizeof(float), n, n_dims, 0 };
        if (is_direct) {
            const size_t next = begin + 2 * N_CELLS <= a_.n_cells ? N_CELLS * a_.k->nb[1] : 0;
            keys              = { lying, a_.k->nb[1], n, n_dims, next };
        }
        for (int64_t r = 0; r < n_rows; r += N_QUERIES) {
            const float * queries[N_QUERIES];
            float *       out[N_QUERIES];
            const int64_t n_tile = std::min<int64_t>(N_QUERIES, n_rows - r);
            for (int64_t i = 0; i < n_tile; ++i) {
                queries[i] = at<const float>(a_.q, first_ + (r + i) % n_, head_of(kv, r + i), i3);
                out[i]     = scores(kv, r + i, i3) + begin;
            }
            is_direct ? multiply_keys<f16>(keys, n_tile, queries, out) : multiply_keys<f32>(keys, n_tile, queries, out);
            keys.next = 0; // the next block was asked for
        }
        for (int64_t i = 0; i < n_; ++i) {
            for (int64_t r = i; r < n_rows; r += n_) {
                const int64_t head = head_of(kv, r);
                if (r == i || (a_.mask && a_.mask->ne[2] > 1)) {
                    read_mask(head, i, i3, begin, n, mask);
                }
                const float slope = slope_of(head, a_.q->ne[2], a_.max_bias);
                finish_scores(scores(kv, r, i3) + begin, mask, a_.scale, a_.cap, slope);
            }
        }
    }

    // scores become weights
    void soft_max(int64_t kv, int64_t row, int64_t i3) const {
        float *       x    = scores(kv, row, i3);
        const int64_t head = head_of(kv, row);
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
        for (int64_t row = 0; row < n_rows(); row += N_ROWS) {
            const int64_t n = std::min(N_ROWS, n_rows() - row);
            a_.is_tiled ? multiply_values<in_order>(kv, i3, begin, end, row, n)
                        : multiply_values<exactly>(kv, i3, begin, end, row, n);
        }
    }

  private:
    int64_t head_of(int64_t kv, int64_t row) const { return kv * a_.n_shared + row / n_; }

    float * scores(int64_t kv, int64_t row, int64_t i3) const {
        const int64_t slab = a_.is_tiled ? 0 : i3 * a_.k->ne[2] + kv;
        return scores_ + (slab * n_rows() + row) * a_.n_scores;
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

    template <class way>
    AVX2 void multiply_values(int64_t kv, int64_t i3, int64_t begin, int64_t end, int64_t row, int64_t n_rows) const {
        auto *        sums       = static_cast<typename way::number *>(own_);
        auto *        weights    = sums + N_ROWS * a_.n_sums;
        auto *        converted  = reinterpret_cast<float *>(weights + N_CELLS * N_ROWS);
        const int64_t n_dims     = a_.v->ne[0];
        const int64_t n_channels = std::min(end, n_dims) - begin;
        const float * p          = scores(kv, row, i3);
        std::fill_n(sums, N_ROWS * padded(n_channels, way::channels), way::first);
        for (int64_t cell = 0; cell < a_.n_cells; cell += N_CELLS) {
            const int64_t n        = std::min(N_CELLS, a_.n_cells - cell);
            float         heaviest = 0.0f;
            for (int64_t r = 0; r < n_rows; ++r) {
                heaviest = std::max(heaviest, largest(p + r * a_.n_scores + cell, N_CELLS));
            }
            if (heaviest == 0.0f) { // no row sees any of it
                continue;
            }
            transpose<way>(p + cell, a_.n_scores, n_rows, weights);
            if (a_.v->type == GGML_TYPE_F16) { // as they lie
                const char * v    = at<const char>(a_.v, cell, kv, i3) + begin * sizeof(ggml_fp16_t);
                const size_t next = cell + 2 * N_CELLS <= a_.n_cells ? N_CELLS * a_.v->nb[1] : 0;
                add_block<f16>({ weights, v, a_.v->nb[1], n, n_channels, n_rows, next }, sums);
                continue;
            }
            for (int64_t c = 0; c < n; ++c) {
                to_f32(a_.v->type, at<const char>(a_.v, cell + c, kv, i3), begin, n_channels,
                       converted + c * n_channels);
            }
            const auto * v = reinterpret_cast<const char *>(converted);
            add_block<f32>({ weights, v, n_channels * sizeof(float), n, n_channels, n_rows, 0 }, sums);
        }
        for (int64_t r = 0; r < n_rows; ++r) {
            auto * out = at<float>(a_.op, head_of(kv, row + r), first_ + (row + r) % n_, i3);
            for (int64_t i = begin; i < std::min(end, n_dims); ++i) {
                const int64_t place = ((i - begin) / way::channels * N_ROWS + r) * way::channels + i % way::channels;
                out[i]              = static_cast<float>(sums[place] - way::first);
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
        if (a.is_tiled) {
            compute_tiles(params, a, own);
            return true;
        }
        for (int64_t row = 0; row < a.q->ne[1]; row += a.n_together) {
            compute(params, a, part(a, row, reinterpret_cast<float *>(first), own));
        }
        return true;
    }

  private:
    // Each thread has tiles of rows of its own. Later rows see more, so that threads take tiles in turns.
    static void compute_tiles(const ggml_compute_params * params, const attention & a, char * own) {
        const int64_t n_kv    = a.k->ne[2];
        const int64_t n_slabs = n_kv * a.q->ne[3];
        const int64_t n_tiles = (a.q->ne[1] + a.n_together - 1) / a.n_together * n_slabs;
        auto *        scores  = reinterpret_cast<float *>(own);
        for (int64_t i = params->ith; i < n_tiles; i += params->nth) {
            const int64_t kv = i % n_kv;
            const int64_t i3 = i / n_kv % a.q->ne[3];
            const part    rows(a, i / n_slabs * a.n_together, scores, own + a.bytes_of_tile());
            for (int64_t block = 0; block < a.n_blocks; ++block) {
                rows.multiply_block(block, kv, i3);
            }
            for (int64_t row = 0; row < rows.n_rows(); ++row) {
                rows.soft_max(kv, row, i3);
            }
            rows.multiply_values(kv, i3, 0, a.n_sums);
        }
    }

    // All threads share the cells, then the rows, then the channels of values.
    static void compute(const ggml_compute_params * params, const attention & a, const part & rows) {
        const int64_t n_kv    = a.k->ne[2];
        const int64_t n_slabs = n_kv * a.q->ne[3];
        libggml().barrier(params->threadpool); // others may still read scores of the rows before
        const auto [block, last_block] = share(params, n_slabs * a.n_blocks);
        for (int64_t i = block; i < last_block; ++i) { // a cell's heads lie one after another
            rows.multiply_block(i / n_kv % a.n_blocks, i % n_kv, i / n_kv / a.n_blocks);
        }
        libggml().barrier(params->threadpool);
        const auto [row, last_row] = share(params, n_slabs * rows.n_rows());
        for (int64_t i = row; i < last_row; ++i) {
            const int64_t slab = i / rows.n_rows();
            rows.soft_max(slab % n_kv, i % rows.n_rows(), slab / n_kv);
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

    const ggml_tensor * q         = op->src[0];
    const ggml_tensor * k         = op->src[1];
    const ggml_tensor * v         = op->src[2];
    const ggml_tensor * mask      = op->src[3];
    const bool          has_rows  = q->type == GGML_TYPE_F32 && q->nb[0] == sizeof(float) && op->type == GGML_TYPE_F32;
    const bool          has_heads = k->ne[2] == v->ne[2] && k->ne[3] == q->ne[3] && v->ne[3] == q->ne[3] &&
                                    q->ne[2] % k->ne[2] == 0 && k->ne[1] == v->ne[1];
    const bool          has_mask  = !mask || (mask->type == GGML_TYPE_F16 && mask->nb[0] == sizeof(ggml_fp16_t));
    return has_rows && has_heads && has_mask && is_readable(k) && is_readable(v) && is_supported() ? &instance
                                                                                                   : nullptr;
}

} // namespace eagle3::kernels
#endif
