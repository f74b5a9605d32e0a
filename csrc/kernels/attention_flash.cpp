// Attention over a deep cache. Each block of K and of V is read and converted once for all heads that share it and all
// rows, or those of a tile, that see any of it. Scores are summed over channels in one order, and sums over cells are
// exact (attention_values.h). So a row's result depends neither on other rows, nor on threads, nor on where cells lie.
#include "kernels/attention.h"

#include "kernels/attention_keys.h"
#include "kernels/attention_keys_avx512.h"
#include "kernels/attention_values_avx512.h"
#include "kernels/attention_weights.h"
#include "kernels/attention_weights_avx512.h"
#include "kernels/op_rows.h"

#ifdef EAGLE3_HAS_KERNELS

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace eagle3::kernels {

namespace {

using namespace avx2;

constexpr int64_t N_BYTES_SCORES = 16 << 20; // of all rows that are computed at a time, about
constexpr int64_t N_HEADS        = 8;        // heads of a block that are multiplied together, at most

static_assert(N_CELLS_SUMMED == 2 * N_CELLS);

// The loops of this processor. All of them give the same bits.
struct loops {
    decltype(&multiply_keys) keys;
    int64_t                  n_queries; // rows of a tile of keys
    decltype(&add_block)     values;

    decltype(&finish_scores)   scores;
    decltype(&to_exponentials) exponentials;
    decltype(&finish_weights)  weights;
};

const loops & fastest_loops() {
    static const loops found = [] {
#if defined(__x86_64__)
        if (avx512::has_floats()) {
            return loops{ avx512::multiply_keys, avx512::N_QUERIES_TILE,  avx512::add_block,
                          avx512::finish_scores, avx512::to_exponentials, avx512::finish_weights };
        }
#endif
        return loops{ multiply_keys, N_QUERIES_TILE, add_block, finish_scores, to_exponentials, finish_weights };
    }();
    return found;
}

int64_t padded(int64_t n, int64_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

// Is any of the n F16 values of a mask not -INF?
bool has_seen(const char * mask, int64_t n) {
    constexpr uint64_t hidden = 0xfc00fc00fc00fc00;
    int64_t            i      = 0;
    while (i + 4 <= n && read<uint64_t>(mask + 2 * i) == hidden) {
        i += 4;
    }
    while (i < n && read<uint16_t>(mask + 2 * i) == static_cast<uint16_t>(hidden)) {
        ++i;
    }
    return i < n;
}

// The end of a row's record, see part.
struct heavy_cells {
    float      unit; // the factor that makes results of the sums
    int32_t    n;
    heavy_cell cells[N_HEAVY];
};

constexpr int64_t N_ENDS = sizeof(heavy_cells) / sizeof(float);

// An operation, and how it is divided among threads.
struct attention {
    explicit attention(const ggml_tensor * op) :
        op(op), q(op->src[0]), k(op->src[1]), v(op->src[2]), mask(op->src[3]), sinks(op->src[4]),
        n_shared(q->ne[2] / k->ne[2]), n_cells(k->ne[1]), n_padded(padded(n_cells, N_CELLS_SUMMED)),
        n_blocks(n_padded / N_CELLS), n_record(padded(n_padded + n_blocks + N_ENDS, 32) + 16),
        n_sums(padded(v->ne[0], N_CHANNELS)), is_tiled(q->ne[1] * q->ne[3] > N_ATTENTION_ROWS_MAX),
        n_together(is_tiled ? rows_of_tile() : rows_that_fit()) {
        float options[3];
        std::memcpy(options, op->op_params, sizeof(options));
        cap      = options[2];
        scale    = cap != 0.0f ? options[0] / cap : options[0];
        max_bias = options[1];
    }

    int64_t n_slabs() const { return k->ne[2] * k->ne[3]; } // of K and V

    // The memory that threads share: records of all rows that are computed at a time, and bounds of values.
    size_t bytes_shared() const {
        return is_tiled ? 0 : padded((n_slabs() * (n_shared * n_together * n_record + n_padded)) * sizeof(float), 64);
    }

    // The memory of a thread's tile: records, and bounds of values.
    size_t bytes_of_tile() const {
        return is_tiled ? padded((n_shared * n_together * n_record + n_padded) * sizeof(float), 64) : 0;
    }

    // The memory of each thread: its tile, and either keys of a block or sums and values.
    size_t bytes_of_thread() const {
        const int64_t keys   = std::max(N_KEYS_TILE * k->ne[0], v->ne[0]);
        const int64_t values = N_ROWS * n_sums + std::max(N_CELLS_SUMMED * N_CHANNELS, n_sums);
        return bytes_of_tile() + padded(std::max(keys, values) * sizeof(float), 64);
    }

    // The heads of a block that a thread multiplies together: as many as have few rows in all, so that these stay in
    // the first cache; one where blocks are few, or heads no neighbours.
    int64_t heads_together(int n_threads) const {
        const bool are_near =
            k->nb[2] == ggml_row_size(k->type, k->ne[0]) && v->nb[2] == ggml_row_size(v->type, v->ne[0]);
        const int64_t n_most = std::min({ N_HEADS, k->ne[2], N_QUERIES / (n_shared * n_together) });
        return are_near && n_blocks * k->ne[3] >= 4 * n_threads ? std::max<int64_t>(n_most, 1) : 1;
    }

    const ggml_tensor *op, *q, *k, *v, *mask, *sinks;
    int64_t            n_shared; // heads that share one of K and V
    int64_t            n_cells, n_padded, n_blocks;
    int64_t            n_record;   // floats of a row's record: an odd number of cache lines
    int64_t            n_sums;     // channels of values, padded
    bool               is_tiled;   // whether each thread computes rows of its own, or all threads share the rows
    int64_t            n_together; // rows that are computed at a time
    float              scale, cap, max_bias;

  private:
    int64_t rows_of_tile() const { return std::clamp<int64_t>(N_ROWS / n_shared, 1, q->ne[1]); }

    int64_t rows_that_fit() const {
        const auto n_bytes = static_cast<int64_t>(sizeof(float) * q->ne[2] * q->ne[3] * n_record);
        return std::clamp<int64_t>(N_BYTES_SCORES / n_bytes, 1, q->ne[1]);
    }
};

// Some rows of the operation, for the heads that share one of K and V. Each row of each head has a record: the scores
// of the cells, which become weights; for each block the largest score, which becomes the number of cells that may be
// summed in floats at a time, or -INF if the row sees nothing of the block; and the heavy cells.
class part {
  public:
    // memory: of all parts of these rows. own: this thread's.
    part(const attention & a, int64_t first, int64_t kv, int64_t i3, float * memory, void * own) :
        a_(a), first_(first), n_(std::min(a.n_together, a.q->ne[1] - first)), kv_(kv), i3_(i3),
        records_(memory +
                 (a.is_tiled ? 0 : i3 * a.k->ne[2] + kv) * (a.n_shared * a.n_together * a.n_record + a.n_padded)),
        bounds_(records_ + a.n_shared * a.n_together * a.n_record), own_(static_cast<float *>(own)) {}

    int64_t n_rows() const { return a_.n_shared * n_; }

    // Computes the scores of a block's cells for all rows of n parts that see any of them. The parts' heads are
    // neighbours: four cells of all of them lie together, and memory delivers most if it is read in order.
    static void multiply_block(const part * parts, int64_t n_parts, int64_t block) {
        const int64_t begin = block * N_CELLS;
        const int64_t n     = std::min(N_CELLS, parts->a_.n_cells - begin);
        int64_t       n_left[N_HEADS], next[N_HEADS] = {}, n_all = 0;
        for (int64_t i = 0; i < n_parts; ++i) {
            n_left[i] = parts[i].find_rows(block, n);
            n_all += n_left[i];
        }
        block_of_queries rows[N_HEADS];
        for (bool is_first = true; n_all > 0; is_first = false) {
            int64_t n_tiles = 0;
            for (int64_t i = 0; i < n_parts; ++i) {
                n_all -= parts[i].take_queries(block, next[i], rows[i]);
                n_tiles += (rows[i].n + fastest_loops().n_queries - 1) / fastest_loops().n_queries;
            }
            keys_ahead ahead;
            if (is_first) {
                ahead = { parts->all_after(parts->a_.k, begin, n, n_parts),
                          parts->all_after(parts->a_.v, begin, n, n_parts) };
                ahead.spread(n_tiles * ((n + N_KEYS_TILE - 1) / N_KEYS_TILE));
            }
            for (int64_t cell = 0; cell < n; cell += N_KEYS_TILE) {
                const int64_t n_keys = std::min(N_KEYS_TILE, n - cell);
                for (int64_t i = 0; i < n_parts; ++i) {
                    if (rows[i].n > 0) {
                        parts[i].multiply_cells(begin, cell, n_keys, rows[i], ahead);
                    }
                    if (is_first && n_left[i] > 0) {
                        parts[i].find_bounds(begin + cell, n_keys);
                    }
                }
            }
        }
        for (int64_t i = 0; i < n_parts; ++i) {
            if (n_left[i] > 0) {
                parts[i].finish_block(block, n);
            }
        }
    }

    // Replaces a row's scores by weights.
    void soft_max(int64_t row) const {
        float *       x    = record(row);
        heavy_cells & end  = this->end(row);
        const int64_t head = head_of(row);
        end.n              = 0;
        float       max    = *std::max_element(&seen(row, 0), &seen(row, 0) + a_.n_blocks);
        const float sink   = a_.sinks ? static_cast<const float *>(a_.sinks->data)[head] : 0.0f;
        if (a_.sinks) {
            max = std::max(max, sink);
        }
        if (!std::isfinite(max)) { // the row sees nothing, or scores that are no numbers
            std::fill_n(&seen(row, 0), a_.n_blocks, -INF);
            end.unit = max == -INF ? 0.0f : std::numeric_limits<float>::quiet_NaN();
            return;
        }
        sums_of_row sums;
        for (int64_t block = 0; block < a_.n_blocks; ++block) {
            if (seen(row, block) != -INF) {
                const int64_t cell = block * N_CELLS;
                fastest_loops().exponentials(x + cell, bounds_ + cell, max, sums);
            }
        }
        const double sum   = sums.total() + (a_.sinks ? std::exp(sink - max) : 0.0);
        float        bound = sums.bound();
        if (!std::isfinite(bound)) {
            std::fill_n(&seen(row, 0), a_.n_blocks, -INF);
            end.unit = std::numeric_limits<float>::quiet_NaN();
            return;
        }
        bound             = std::max(bound, 1e-25f); // so that the factor is finite
        const auto factor = static_cast<float>(SUM_MAX / (sum * bound));
        for (int64_t block = 0; block < a_.n_blocks; ++block) {
            const int64_t cell = block * N_CELLS;
            if (seen(row, block) != -INF) {
                const int64_t step = fastest_loops().weights(x + cell, bounds_ + cell, static_cast<int32_t>(cell),
                                                             factor, end.cells, end.n);
                seen(row, block)   = static_cast<float>(step);
            } else if (seen(row, block ^ 1) != -INF) { // 64 cells are summed together
                std::fill_n(x + cell, N_CELLS, 0.0f);
            }
        }
        end.unit = bound / SUM_MAX;
    }

    // Computes channels [begin, end) of the results.
    void multiply_values(int64_t begin, int64_t end) const {
        for (int64_t row = 0; row < n_rows(); row += N_ROWS) {
            multiply_values(begin, end, row, std::min(N_ROWS, n_rows() - row));
        }
    }

  private:
    int64_t head_of(int64_t row) const { return kv_ * a_.n_shared + row / n_; }

    cache_rows rows_of(const ggml_tensor * cache, int64_t begin, int64_t n) const {
        return { cache->type, at<const char>(cache, begin, kv_, i3_), cache->nb[1], n };
    }

    // Collects the next rows that see a block, from row `next` on. Returns their number.
    int64_t take_queries(int64_t block, int64_t & next, block_of_queries & rows) const {
        rows.n = 0;
        for (; next < n_rows() && rows.n < N_QUERIES; ++next) {
            if (seen(next, block) != -INF) {
                rows.queries[rows.n] = at<const float>(a_.q, first_ + next % n_, head_of(next), i3_);
                rows.out[rows.n++]   = record(next) + block * N_CELLS;
            }
        }
        return rows.n;
    }

    void multiply_cells(int64_t begin, int64_t cell, int64_t n, const block_of_queries & rows,
                        keys_ahead & ahead) const {
        fastest_loops().keys(rows_of(a_.k, begin + cell, n), cell, a_.k->ne[0], rows, own_, ahead);
    }

    void find_bounds(int64_t begin, int64_t n) const {
        bounds_of_values(rows_of(a_.v, begin, n), a_.v->ne[0], own_, bounds_ + begin);
    }

    // The n cells after [begin, begin + n), of this head and the next ones, n_heads in all.
    rows_ahead all_after(const ggml_tensor * cache, int64_t begin, int64_t n, int64_t n_heads) const {
        rows_ahead found = rows_after(cache, begin, n, 0, cache->ne[0]);
        found.n_bytes *= n_heads;
        return found;
    }

    // The n cells after [begin, begin + n), and n_values of each from this channel on.
    rows_ahead rows_after(const ggml_tensor * cache, int64_t begin, int64_t n, int64_t channel,
                          int64_t n_values) const {
        const char * row = at<const char>(cache, begin + n, kv_, i3_) + ggml_row_size(cache->type, channel);
        return { row, cache->nb[1], std::clamp<int64_t>(a_.n_cells - begin - n, 0, n),
                 ggml_row_size(cache->type, n_values) };
    }

    float * record(int64_t row) const { return records_ + row * a_.n_record; }

    float & seen(int64_t row, int64_t block) const { return record(row)[a_.n_padded + block]; }

    heavy_cells & end(int64_t row) const {
        return *reinterpret_cast<heavy_cells *>(record(row) + a_.n_padded + a_.n_blocks);
    }

    bool has_masks_of_heads() const { return a_.mask && a_.mask->ne[2] > 1; }

    // The mask of a row from a cell on.
    const char * mask(int64_t row, int64_t begin) const {
        return at<const char>(a_.mask, first_ + row % n_, head_of(row) % a_.mask->ne[2], i3_ % a_.mask->ne[3]) +
               begin * sizeof(ggml_fp16_t);
    }

    // Finds which rows see any of the block's n cells, and returns their number. The others get -INF in their record.
    int64_t find_rows(int64_t block, int64_t n) const {
        int64_t n_seen = 0;
        for (int64_t r = 0; r < n_rows(); ++r) {
            bool is_seen = n > 0;
            if (is_seen && r >= n_ && !has_masks_of_heads()) {
                is_seen = seen(r - n_, block) != -INF;
            } else if (is_seen && a_.mask) {
                is_seen = has_seen(mask(r, block * N_CELLS), n);
            }
            seen(r, block) = is_seen ? 0.0f : -INF;
            n_seen += is_seen;
        }
        return n_seen;
    }

    // Reads what is added to a block's scores; cells after the n-th are masked.
    AVX2 void read_mask(int64_t row, int64_t begin, int64_t n, float * out) const {
        std::fill_n(out, N_CELLS, -INF);
        if (!a_.mask) {
            std::fill_n(out, n, 0.0f);
            return;
        }
        const char * x = mask(row, begin);
        int64_t      i = 0;
        for (; i + 8 <= n; i += 8) {
            _mm256_storeu_ps(out + i, f16::load8(x, i));
        }
        for (; i < n; ++i) {
            out[i] = ggml_fp16_to_fp32(read<ggml_fp16_t>(x + i * sizeof(ggml_fp16_t)));
        }
    }

    // Makes scores of the products of all rows that see any of the block.
    void finish_block(int64_t block, int64_t n) const {
        const int64_t begin = block * N_CELLS;
        float         added[N_CELLS];
        for (int64_t i = 0; i < n_; ++i) {
            for (int64_t r = i; r < n_rows(); r += n_) {
                if (seen(r, block) == -INF) {
                    continue;
                }
                if (r == i || has_masks_of_heads()) {
                    read_mask(r, begin, n, added);
                }
                const float slope = slope_of(head_of(r), a_.q->ne[2], a_.max_bias);
                seen(r, block)    = fastest_loops().scores(record(r) + begin, added, a_.scale, a_.cap, slope);
            }
        }
    }

    // Collects the rows among n_rows from `row` on that see any of 64 cells, and prefetches their next weights. Returns
    // those of the cells to sum, [first, second): without a half that none of the rows sees.
    AVX2 std::pair<int64_t, int64_t> take_weights(int64_t cell, int64_t row, int64_t n_rows,
                                                  block_of_weights & b) const {
        b.n            = 0;
        bool is_seen[] = { false, false };
        for (int64_t r = 0; r < n_rows; ++r) {
            const float * parts = &seen(row + r, cell / N_CELLS);
            int64_t       step  = INT64_MAX;
            for (int half : { 0, 1 }) {
                if (parts[half] != -INF) {
                    step          = std::min(step, static_cast<int64_t>(parts[half]));
                    is_seen[half] = true;
                }
            }
            if (step == INT64_MAX) {
                continue;
            }
            int64_t & of_tile = b.steps[b.n / N_ROWS_TILE];
            of_tile           = b.n % N_ROWS_TILE == 0 ? step : std::min(of_tile, step);
            b.rows[b.n]       = static_cast<int32_t>(r);
            b.weights[b.n++]  = record(row + r) + cell;
            rows_ahead{ reinterpret_cast<const char *>(record(row + r) + cell + N_CELLS_SUMMED), 0, 1,
                        N_CELLS_SUMMED * sizeof(float) }
                .ask(4);
        }
        const int64_t first = is_seen[0] ? 0 : N_CELLS;
        for (int64_t r = 0; r < b.n; ++r) {
            b.weights[r] += first;
        }
        return { cell + first, std::min(cell + (is_seen[1] ? N_CELLS_SUMMED : N_CELLS), a_.n_cells) };
    }

    void multiply_values(int64_t begin, int64_t end, int64_t row, int64_t n_rows) const {
        auto *        sums       = reinterpret_cast<int32_t *>(own_);
        float *       scratch    = own_ + N_ROWS * a_.n_sums;
        const int64_t n_channels = std::min(end, a_.v->ne[0]) - begin;
        std::fill_n(sums, N_ROWS * padded(n_channels, N_LANES), 0);
        block_of_weights b;
        for (int64_t cell = 0; cell < a_.n_cells; cell += N_CELLS_SUMMED) {
            const auto [first, last] = take_weights(cell, row, n_rows, b);
            if (b.n > 0) {
                fastest_loops().values(b, rows_of(a_.v, first, last - first), bounds_ + first, begin, n_channels,
                                       scratch, sums, rows_after(a_.v, first, last - first, begin, n_channels));
            }
        }
        for (int64_t r = 0; r < n_rows; ++r) {
            const heavy_cells & end = this->end(row + r);
            for (int32_t i = 0; i < end.n; ++i) {
                const heavy_cell & h = end.cells[i];
                to_f32(rows_of(a_.v, h.cell, 1), begin, n_channels, scratch);
                add_cell(scratch, h.weight, h.exponent, n_channels, sums + r * N_LANES);
            }
            auto * out = at<float>(a_.op, head_of(row + r), first_ + (row + r) % n_, i3_);
            for (int64_t i = 0; i < n_channels; ++i) {
                const int64_t place = (i / N_LANES * N_ROWS + r) * N_LANES + i % N_LANES;
                out[begin + i]      = static_cast<float>(sums[place]) * end.unit;
            }
        }
    }

    const attention & a_;
    int64_t           first_, n_; // rows
    int64_t           kv_, i3_;
    float *           records_;
    float *           bounds_; // [cell]: bound of its values
    float *           own_;
};

class flash_attention : public op_traits {
  public:
    bool work_size(int n_threads, const ggml_tensor * op, size_t & size) override {
        const attention a(op);
        size = a.bytes_shared() + n_threads * a.bytes_of_thread();
        return true;
    }

    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        const attention a(op);
        auto *          own    = static_cast<char *>(params->wdata) + params->ith * a.bytes_of_thread();
        auto *          shared = static_cast<char *>(params->wdata) + params->nth * a.bytes_of_thread();
        if (a.is_tiled) {
            compute_tiles(params, a, own);
            return true;
        }
        for (int64_t row = 0; row < a.q->ne[1]; row += a.n_together) {
            compute(params, a, row, reinterpret_cast<float *>(shared), own);
        }
        return true;
    }

  private:
    // Each thread computes tiles of its own. Threads take tiles in turns, since later rows see more cells.
    static void compute_tiles(const ggml_compute_params * params, const attention & a, char * own) {
        const int64_t n_kv    = a.k->ne[2];
        const int64_t n_tiles = (a.q->ne[1] + a.n_together - 1) / a.n_together * a.n_slabs();
        auto *        records = reinterpret_cast<float *>(own);
        for (int64_t i = params->ith; i < n_tiles; i += params->nth) {
            const int64_t first = i / a.n_slabs() * a.n_together;
            const part    rows(a, first, i % n_kv, i / n_kv % a.k->ne[3], records, own + a.bytes_of_tile());
            for (int64_t block = 0; block < a.n_blocks; ++block) {
                part::multiply_block(&rows, 1, block);
            }
            for (int64_t row = 0; row < rows.n_rows(); ++row) {
                rows.soft_max(row);
            }
            rows.multiply_values(0, a.n_sums);
        }
    }

    // Divides among all threads first the cells, then the rows, then the channels of values.
    static void compute(const ggml_compute_params * params, const attention & a, int64_t first, float * shared,
                        void * own) {
        const int64_t n_kv    = a.k->ne[2];
        const auto    part_of = [&](int64_t slab) {
            return part(a, first, slab % n_kv, slab / n_kv, shared, own);
        };
        libggml().barrier(params->threadpool); // others may still read the previous rows' records
        const int64_t n_together       = a.heads_together(params->nth);
        const int64_t n_units          = (n_kv + n_together - 1) / n_together; // of a block
        const auto [block, last_block] = share(params, a.k->ne[3] * a.n_blocks * n_units);
        std::vector<part> heads;
        for (int64_t i = block; i < last_block; ++i) { // in the order of memory: a cell's heads are neighbours
            const int64_t kv = i % n_units * n_together, slab = i / n_units / a.n_blocks * n_kv + kv;
            heads.clear();
            for (int64_t k = 0; k < std::min(n_together, n_kv - kv); ++k) {
                heads.push_back(part_of(slab + k));
            }
            part::multiply_block(heads.data(), static_cast<int64_t>(heads.size()), i / n_units % a.n_blocks);
        }
        libggml().barrier(params->threadpool);
        const int64_t n_rows     = part_of(0).n_rows();
        const auto [row, n_last] = share(params, a.n_slabs() * n_rows);
        for (int64_t i = row; i < n_last; ++i) {
            part_of(i / n_rows).soft_max(i % n_rows);
        }
        libggml().barrier(params->threadpool);
        const int64_t n_groups      = a.n_sums / N_CHANNELS;
        const auto [group, n_total] = share(params, a.n_slabs() * n_groups);
        for (int64_t i = group; i < n_total;) { // all of this thread's channels of a head at once
            const int64_t begin = i % n_groups;
            const int64_t end   = std::min(n_groups, begin + n_total - i);
            part_of(i / n_groups).multiply_values(begin * N_CHANNELS, end * N_CHANNELS);
            i += end - begin;
        }
    }
};

bool is_readable(const ggml_tensor * cache) {
    const bool is_float = cache->type == GGML_TYPE_F32 || ggml_get_type_traits(cache->type)->to_float;
    // values are converted N_CHANNELS channels at a time, which must be whole blocks
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
