#include "kernels/product.h"

#include "kernels/limited_product.h"
#include "kernels/op_rows.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <new>
#include <numeric>

namespace eagle3::kernels {

namespace {

constexpr size_t  N_BYTES    = 1 << 17; // bytes of weights that they are multiplied by at a time, about
constexpr int64_t N_OUT      = 256;     // or channels of these, if that is less
constexpr size_t  N_BYTES_L3 = 4 << 20; // bytes of rows that stay in the cache that cores share
constexpr int64_t N_CHANNELS = 16;      // kernels compute at most so many channels together

// A thread takes so many parts of a matrix if others are as fast, unless these have fewer bytes or channels, times the
// rows beyond 8: what follows a part is prefetched in vain.
constexpr int64_t N_PARTS     = 8;
constexpr int64_t N_BYTES_MIN = 1 << 18;
constexpr int64_t N_OUT_MIN   = 256;

size_t aligned(size_t n_bytes) {
    return (n_bytes + 63) / 64 * 64;
}

// Rows begin at a line of the cache: work_size has room for it.
uint8_t * first_line(void * memory) {
    return reinterpret_cast<uint8_t *>(aligned(reinterpret_cast<size_t>(memory)));
}

} // namespace

// What all threads of an operation share.
struct product::shared {
    const channel_ranges * ranges;
    std::atomic<int64_t>   n_taken;

    // Begins it in `memory` when each thread has quantized its rows. `ranges` are those that thread 0 gives: it called
    // ggml, and limited_product is set for it alone.
    static shared & begin(void * memory, const ggml_compute_params * params, const channel_ranges * ranges) {
        if (params->ith == 0) {
            new (memory) shared{ ranges, { params->nth } };
        }
        libggml().barrier(params->threadpool);
        return *static_cast<shared *>(memory);
    }
};

// The parts of an operation that one thread takes. One that is slower than others, or that waits for a processor, takes
// fewer, so that the others hardly wait for it.
class product::parts {
  public:
    parts(const ggml_compute_params * params, shared & all) : n_threads_(params->nth), all_(all), next_(params->ith) {}

    // Divides n groups, of which `multiple` are computed together, by n_rows rows, and calls f(first, last) for those
    // that are taken.
    template <class F>
    void divide(int64_t n, int64_t multiple, size_t group_bytes, int64_t n_rows, F && f) {
        // with NUMA a thread always gets the same weights, which lie near it
        const int64_t n_bytes = n * static_cast<int64_t>(group_bytes), n_units = (n + multiple - 1) / multiple;
        const int64_t n_fit   = std::min(n_bytes / N_BYTES_MIN, n_units * N_CHANNELS / N_OUT_MIN);
        const int64_t n_own   = n_fit * std::max<int64_t>(1, n_rows / 8) / n_threads_;
        const int64_t n_parts = n_threads_ * (libggml().is_numa() ? 1 : std::clamp<int64_t>(n_own, 1, N_PARTS));
        for (; next_ < end_ + n_parts; next_ = all_.n_taken.fetch_add(1, std::memory_order_relaxed)) {
            const int64_t part = next_ - end_;
            f(n_units * part / n_parts * multiple, std::min(n, n_units * (part + 1) / n_parts * multiple));
        }
        end_ += n_parts;
    }

  private:
    const int64_t n_threads_;
    shared &      all_;
    int64_t       next_;
    int64_t       end_ = 0; // of the parts before
};

// Which rows chose which expert. Each thread makes this in its own memory, which takes less time than to wait for one
// thread that makes it for all.
struct product::expert_rows {
    int64_t   n_used, n_tokens, n_experts;
    int32_t * begin;  // [n_experts + 1]: place of an expert's first row
    int32_t * places; // [n_tokens][n_used]: the row's place in the order of experts
    int32_t * rows;   // [place]: index in places

    static size_t size(const ggml_tensor * op) {
        return aligned((op->src[0]->ne[2] + 1 + 2 * ggml_nelements(op->src[2])) * sizeof(int32_t));
    }

    expert_rows(const ggml_tensor * op, void * memory) :
        n_used(op->src[2]->ne[0]), n_tokens(op->src[2]->ne[1]), n_experts(op->src[0]->ne[2]),
        begin(static_cast<int32_t *>(memory)), places(begin + n_experts + 1), rows(places + n_used * n_tokens) {
        std::fill_n(begin, n_experts + 1, 0);
        for (int64_t i = 0; i < n_used * n_tokens; ++i) {
            const int32_t expert = expert_of(op, i);
            GGML_ASSERT(expert >= 0 && expert < n_experts);
            places[i] = begin[expert + 1]++; // so far the index among the expert's rows
        }
        std::partial_sum(begin, begin + n_experts + 1, begin);
        for (int64_t i = 0; i < n_used * n_tokens; ++i) {
            places[i] += begin[expert_of(op, i)];
            rows[places[i]] = static_cast<int32_t>(i);
        }
    }

    int32_t expert_of(const ggml_tensor * op, int64_t i) const {
        const ggml_tensor * ids  = op->src[2];
        const char *        data = static_cast<const char *>(ids->data);
        int32_t             expert;
        std::memcpy(&expert, data + i / n_used * ids->nb[1] + i % n_used * ids->nb[0], sizeof(expert));
        return expert;
    }
};

bool product::takes(const ggml_tensor * op) const {
    const ggml_tensor * w = op->src[0];
    const ggml_tensor * x = op->src[1];
    if (x->type != GGML_TYPE_F32 || x->nb[0] != sizeof(float) || op->type != GGML_TYPE_F32 ||
        op->nb[0] != sizeof(float)) {
        return false;
    }
    if (op->op == GGML_OP_MUL_MAT_ID) {
        return op->src[2]->type == GGML_TYPE_I32 && op->src[2]->ne[1] <= n_rows_max_;
    }
    const bool lies_evenly = op->nb[2] == op->ne[1] * op->nb[1] && op->nb[3] == op->ne[2] * op->nb[2];
    return op->op == GGML_OP_MUL_MAT && lies_evenly && ggml_nrows(x) <= n_rows_max_ * w->ne[2] * w->ne[3];
}

bool product::work_size(int n_threads, const ggml_tensor * op, size_t & size) {
    const size_t row_bytes = kernel_.row_size(op->src[1]->ne[0]);
    if (op->op == GGML_OP_MUL_MAT) {
        size = 64 + aligned(ggml_nrows(op->src[1]) * row_bytes) + sizeof(shared);
    } else {
        const size_t n_out = kernel_.n_rows * n_groups_together(op->src[1]->ne[0]) * kernel_.n_channels;
        size               = 64 + aligned(ggml_nelements(op->src[2]) * row_bytes) + aligned(sizeof(shared)) +
                             n_threads * (expert_rows::size(op) + aligned(n_out * sizeof(float)));
    }
    return true;
}

bool product::compute_forward(ggml_compute_params * params, ggml_tensor * op) {
    if (op->op == GGML_OP_MUL_MAT) {
        multiply(params, op);
    } else {
        multiply_experts(params, op);
    }
    return true;
}

void product::multiply(ggml_compute_params * params, ggml_tensor * op) const {
    const ggml_tensor * w         = op->src[0];
    const ggml_tensor * x         = op->src[1];
    const int64_t       k         = x->ne[0];
    const size_t        row_bytes = kernel_.row_size(k);
    const int64_t       n_rows    = ggml_nrows(x);
    auto *              rows      = first_line(params->wdata);
    for (int64_t r = params->ith; r < n_rows; r += params->nth) {
        const int64_t slab = r / x->ne[1];
        kernel_.quantize(at<const float>(x, r % x->ne[1], slab % x->ne[2], slab / x->ne[2]), k, rows + r * row_bytes);
    }
    shared &      all = shared::begin(rows + aligned(n_rows * row_bytes), params, limited_product::ranges_of(w));
    parts         own(params, all);
    const auto *  weights = static_cast<const char *>(w->data);
    const int64_t ldo     = op->nb[1] / sizeof(float);
    if (all.ranges && w->ne[2] * w->ne[3] == 1) {
        compute_ranges(own, w, *all.ranges, rows, n_rows, static_cast<float *>(op->data), ldo);
        return;
    }
    const bool    is_one  = w->ne[2] * w->ne[3] == 1; // then all rows are multiplied by it together
    const int64_t n_slabs = is_one ? 1 : x->ne[2] * x->ne[3];
    const int64_t n_each  = n_rows / n_slabs;
    for (int64_t slab = 0; slab < n_slabs; ++slab) { // several heads may share a matrix
        const int64_t i2     = slab % x->ne[2];
        const int64_t i3     = slab / x->ne[2];
        const char *  matrix = weights + i2 / (x->ne[2] / w->ne[2]) * w->nb[2] + i3 / (x->ne[3] / w->ne[3]) * w->nb[3];
        compute_matrix(own, w, matrix, rows + slab * n_each * row_bytes, n_each, at<float>(op, 0, i2, i3), ldo);
    }
}

void product::multiply_experts(ggml_compute_params * params, ggml_tensor * op) const {
    const ggml_tensor * x         = op->src[1];
    const int64_t       k         = x->ne[0];
    const size_t        row_bytes = kernel_.row_size(k);
    auto *              rows      = first_line(params->wdata);

    const size_t n_out     = kernel_.n_rows * n_groups_together(k) * kernel_.n_channels;
    const size_t own_bytes = expert_rows::size(op) + aligned(n_out * sizeof(float));
    uint8_t *    after     = rows + aligned(ggml_nelements(op->src[2]) * row_bytes);
    uint8_t *    own       = after + aligned(sizeof(shared)) + params->ith * own_bytes;

    const expert_rows chosen(op, own);
    auto *            scratch = reinterpret_cast<float *>(own + expert_rows::size(op));

    // a token has x->ne[1] rows: one for each of its experts, or fewer, which these share
    for (int64_t r = params->ith; r < chosen.n_tokens * x->ne[1]; r += params->nth) {
        const int64_t   token  = r / x->ne[1];
        const int32_t * places = chosen.places + token * chosen.n_used;
        uint8_t *       first  = rows + places[r % x->ne[1]] * row_bytes;
        kernel_.quantize(at<const float>(x, r % x->ne[1], token, 0), k, first);
        for (int64_t i = r % x->ne[1] + x->ne[1]; i < chosen.n_used; i += x->ne[1]) {
            std::memcpy(rows + places[i] * row_bytes, first, row_bytes);
        }
    }
    parts taken(params, shared::begin(after, params, nullptr));
    for (int64_t expert = 0; expert < chosen.n_experts; ++expert) {
        if (chosen.begin[expert] < chosen.begin[expert + 1]) {
            compute_expert(taken, op, expert, rows, chosen, scratch);
        }
    }
}

size_t product::group_bytes(int64_t k) const {
    return kernel_.n_channels * ggml_row_size(kernel_.type, k);
}

int64_t product::n_groups_together(int64_t k) const {
    const size_t  n_bytes    = group_bytes(std::min(k, kernel_.k_block));
    const int64_t n_fit      = std::min<int64_t>(N_BYTES / n_bytes, N_OUT / kernel_.n_channels);
    const int64_t n_multiple = N_CHANNELS / kernel_.n_channels;
    return std::max<int64_t>(1, (n_fit + n_multiple / 2) / n_multiple) * n_multiple;
}

void product::compute_matrix(parts & parts, const ggml_tensor * w, const char * matrix, const uint8_t * rows,
                             int64_t n_rows, float * out, int64_t ldo) const {
    const int64_t k         = w->ne[0];
    const size_t  row_bytes = kernel_.row_size(k);
    const int64_t n_near    = std::max<int64_t>(1, N_BYTES_L3 / (kernel_.n_rows * row_bytes)) * kernel_.n_rows;
    for (int64_t begin = 0; begin < n_rows; begin += n_near) {
        const int64_t n = std::min(n_near, n_rows - begin);
        parts.divide(w->ne[1] / kernel_.n_channels, N_CHANNELS / kernel_.n_channels, group_bytes(k), n,
                     [&](int64_t first, int64_t last) {
                         compute_groups(w, matrix, rows + begin * row_bytes, n, first, last, out + begin * ldo, ldo);
                     });
    }
}

void product::compute_groups(const ggml_tensor * w, const char * matrix, const uint8_t * rows, int64_t n_rows,
                             int64_t first, int64_t last, float * out, int64_t ldo) const {
    const int64_t k            = w->ne[0];
    const size_t  row_bytes    = kernel_.row_size(k);
    const auto *  weights      = reinterpret_cast<const uint8_t *>(matrix);
    const int64_t n_groups_max = n_rows <= kernel_.n_rows ? std::max<int64_t>(1, last - first) : n_groups_together(k);
    for (int64_t group = first; group < last; group += n_groups_max) {
        for (int64_t r = 0; r < n_rows; r += kernel_.n_rows) {
            kernel_.compute(weights, k, rows + r * row_bytes, std::min(kernel_.n_rows, n_rows - r), group,
                            std::min(group + n_groups_max, last), out + r * ldo, ldo);
        }
    }
}

void product::compute_ranges(parts & parts, const ggml_tensor * w, const channel_ranges & ranges, const uint8_t * rows,
                             int64_t n_rows, float * out, int64_t ldo) const {
    int64_t n_groups = 0;
    for (const auto & [first, last] : ranges) {
        n_groups += (last - first) / kernel_.n_channels;
    }
    parts.divide(n_rows, 1, w->ne[1] * sizeof(float), 1, [&](int64_t r, int64_t r_end) {
        for (float * row = out + r * ldo; r < r_end; ++r, row += ldo) {
            int64_t end = 0;
            for (const auto & [first, last] : ranges) {
                std::fill(row + end, row + first, -INFINITY);
                end = last;
            }
            std::fill(row + end, row + w->ne[1], -INFINITY);
        }
    });
    // parts have the same number of groups, wherever they are
    parts.divide(n_groups, N_CHANNELS / kernel_.n_channels, group_bytes(w->ne[0]), n_rows,
                 [&](int64_t begin_own, int64_t end_own) {
                     int64_t n_before = 0;
                     for (const auto & [first, last] : ranges) {
                         const int64_t n     = (last - first) / kernel_.n_channels;
                         const int64_t shift = first / kernel_.n_channels - n_before;
                         compute_groups(w, static_cast<const char *>(w->data), rows, n_rows,
                                        std::max(begin_own, n_before) + shift, std::min(end_own, n_before + n) + shift,
                                        out, ldo);
                         n_before += n;
                     }
                 });
}

void product::compute_expert(parts & parts, ggml_tensor * op, int64_t expert, const uint8_t * rows,
                             const expert_rows & chosen, float * scratch) const {
    const ggml_tensor * w         = op->src[0];
    const int64_t       k         = w->ne[0];
    const size_t        row_bytes = kernel_.row_size(k);
    const auto *        weights   = static_cast<const uint8_t *>(w->data) + expert * w->nb[2];

    const auto result = [&](int64_t place) {
        return at<float>(op, chosen.rows[place] % chosen.n_used, chosen.rows[place] / chosen.n_used, 0);
    };
    const int64_t begin = chosen.begin[expert], end = chosen.begin[expert + 1];
    // results are written to scratch first: the rows of an expert are not neighbours in the output
    const auto    compute_some = [&](int64_t group, int64_t n_groups) {
        const int64_t n_channels = n_groups * kernel_.n_channels;
        for (int64_t place = begin; place < end; place += kernel_.n_rows) {
            const int64_t n_rows = std::min(kernel_.n_rows, end - place);
            kernel_.compute(weights + group * group_bytes(k), k, rows + place * row_bytes, n_rows, 0, n_groups, scratch,
                            n_channels);
            for (int64_t r = 0; r < n_rows; ++r) {
                std::memcpy(result(place + r) + group * kernel_.n_channels, scratch + r * n_channels,
                            n_channels * sizeof(float));
            }
        }
    };
    const int64_t n_together = n_groups_together(k);
    parts.divide(w->ne[1] / kernel_.n_channels, N_CHANNELS / kernel_.n_channels, group_bytes(k), end - begin,
                 [&](int64_t first, int64_t last) {
                     if (end - begin == 1) {
                         kernel_.compute(weights, k, rows + begin * row_bytes, 1, first, last, result(begin), 0);
                         return;
                     }
                     for (int64_t group = first; group < last; group += n_together) {
                         compute_some(group, std::min(n_together, last - group));
                     }
                 });
}

} // namespace eagle3::kernels
