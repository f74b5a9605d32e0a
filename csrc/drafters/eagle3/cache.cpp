#include "drafters/eagle3/cache.h"

#include "error.h"
#include "ggml-alloc.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace eagle3 {

static void check_type(const char * what, ggml_type type, const head_hparams & hparams) {
    const bool known = type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16 ||
                       type == GGML_TYPE_Q8_0 || type == GGML_TYPE_Q4_0 || type == GGML_TYPE_Q4_1 ||
                       type == GGML_TYPE_Q5_0 || type == GGML_TYPE_Q5_1 || type == GGML_TYPE_IQ4_NL;
    if (!known) {
        throw std::invalid_argument(
            format("%s: expected one of f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, iq4_nl, found ggml type %d", what,
                   type));
    }
    if (hparams.n_embd_head % ggml_blck_size(type) != 0 || hparams.kv_lora_rank % ggml_blck_size(type) != 0) {
        throw std::invalid_argument(
            format("%s: type %s needs heads whose size is a multiple of %d, the draft's are %d wide", what,
                   ggml_type_name(type), static_cast<int>(ggml_blck_size(type)), hparams.n_embd_head));
    }
}

// Copies n rows, within a tensor or to another one.
static void copy_rows(ggml_tensor * src, int64_t row_src, ggml_tensor * dst, int64_t row_dst, int64_t n) {
    const context_ptr ctx  = make_tensor_context(2);
    const auto        view = [&ctx, n](ggml_tensor * t, int64_t row) {
        ggml_tensor * rows = ggml_view_2d(ctx.get(), t, t->ne[0], n, t->nb[1], row * t->nb[1]);
        ggml_backend_view_init(rows);
        return rows;
    };
    ggml_backend_tensor_copy(view(src, row_src), view(dst, row_dst));
}

draft_cache::draft_cache(const head_hparams & hparams, int32_t n_ctx, int32_t n_seq_max, ggml_type type_k,
                         ggml_type type_v, const device & dev) :
    n_ctx_(n_ctx), dev_(dev), n_embd_k_(hparams.n_embd_k()), n_layer_(hparams.n_layer),
    n_per_layer_(hparams.is_mla() ? 1 : 2), type_k_(type_k), type_v_(type_v), extents_(n_seq_max) {
    check_type("draft_type_k", type_k, hparams);
    check_type("draft_type_v", type_v, hparams);
    provide();
}

// The slots that a sequence should have. Each size is half as much again as the one before, so that extents rarely move
// and sequences of about the same length have extents of the same size.
int32_t draft_cache::size_for(const extent & e) const {
    if (e.n_needed == 0) {
        return e.size <= n_keep ? e.size : 0;
    }
    int32_t size = n_pad;
    while (size < e.n_needed) {
        size = pad(size + size / 2, n_pad);
    }
    return std::min(size, pad(n_ctx_ + n_scratch, n_pad));
}

bool draft_cache::is_loose() const {
    int64_t n_rows_max = n_loose;
    for (const extent & e : extents_) {
        const int64_t size = size_for(e);
        n_rows_max += e.n_needed > 0 ? 2 * size : size;
    }
    return pool_.n_rows > n_rows_max;
}

// Returns a pool without a buffer if the device has no memory for it.
draft_cache::pool draft_cache::make_pool(int64_t n_rows) const {
    pool p;
    p.n_rows = n_rows;
    p.ctx    = make_tensor_context(n_per_layer_ * n_layer_);
    for (int32_t i = 0; i < n_per_layer_ * n_layer_; ++i) {
        const ggml_type type = i % n_per_layer_ == 0 ? type_k_ : type_v_;
        p.tensors.push_back(ggml_new_tensor_2d(p.ctx.get(), type, n_embd_k_, n_rows));
    }
    p.buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(p.ctx.get(), dev_.buft()));
    if (p.buffer) {
        // masked slots are still multiplied by zero, so they must not hold NaN
        ggml_backend_buffer_clear(p.buffer.get(), 0);
    }
    return p;
}

// Makes new tensors, in which each sequence has an extent of the length that it should have, and nothing is free. False
// if the device has no memory for them.
bool draft_cache::rebuild() {
    std::vector<extent> extents = extents_;
    std::vector<size_t> order(extents.size());
    std::iota(order.begin(), order.end(), 0);
    for (extent & e : extents) {
        e.size = size_for(e);
    }
    std::stable_sort(order.begin(), order.end(),
                     [&extents](size_t a, size_t b) { return extents[a].size < extents[b].size; });
    int64_t n_rows = 0;
    for (const size_t i : order) {
        extents[i].base = n_rows;
        n_rows += extents[i].size;
    }

    pool p = make_pool(std::max<int64_t>(n_rows, n_pad));
    if (!p.buffer) {
        return false;
    }
    for (size_t i = 0; i < extents.size(); ++i) {
        const int32_t n = std::min({ extents[i].n_needed, extents[i].size, extents_[i].size });
        for (size_t t = 0; n > 0 && t < p.tensors.size(); ++t) {
            copy_rows(pool_.tensors[t], extents_[i].base, p.tensors[t], extents[i].base, n);
        }
    }
    const bool frees = pool_.buffer != nullptr;
    pool_            = std::move(p);
    extents_         = std::move(extents);
    free_.clear();
    if (n_rows == 0) {
        free_.push_back({ 0, n_pad, 0 });
    }
    version_++;
    if (frees) {
        dev_.on_free();
    }
    return true;
}

// Takes the shortest free extent that is long enough, unless even that is far too long. False if there is none.
bool draft_cache::move_to_free(extent & e) {
    const int64_t size_max = 2 * static_cast<int64_t>(size_for(e));
    auto          best     = free_.end();
    for (auto it = free_.begin(); it != free_.end(); ++it) {
        if (it->size >= e.n_needed && it->size <= size_max && (best == free_.end() || it->size < best->size)) {
            best = it;
        }
    }
    if (best == free_.end()) {
        return false;
    }
    for (ggml_tensor * t : pool_.tensors) {
        if (e.size > 0) {
            copy_rows(t, e.base, t, best->base, e.size);
        }
    }
    clear(best->base + e.size, best->size - e.size);
    std::swap(e.base, best->base);
    std::swap(e.size, best->size);
    if (best->size == 0) {
        free_.erase(best);
    }
    return true;
}

// Clears rows in which another sequence may have left NaN.
void draft_cache::clear(int64_t row, int32_t n) {
    std::vector<uint8_t> zeros;
    for (ggml_tensor * t : pool_.tensors) {
        // not every device can fill part of a buffer with a value, but all can copy
        int32_t n_done = std::min(n, 32);
        zeros.resize(n_done * t->nb[1]);
        ggml_backend_tensor_set(t, zeros.data(), row * t->nb[1], zeros.size());
        while (n_done < n) {
            const int32_t n_more = std::min(n_done, n - n_done);
            copy_rows(t, row, t, row + n_done, n_more);
            n_done += n_more;
        }
    }
}

void draft_cache::request(llama_seq_id seq_id, int32_t n) {
    extents_[seq_id].n_needed = std::min(n, pad(n_ctx_ + n_scratch, n_pad));
}

void draft_cache::provide() {
    bool fits = pool_.buffer != nullptr;
    for (extent & e : extents_) {
        fits = fits && (e.n_needed <= e.size || move_to_free(e));
    }
    if ((!fits || is_loose()) && !rebuild() && !fits) {
        int64_t n_rows = 0;
        for (extent & e : extents_) {
            n_rows += size_for(e);
            e.n_needed = std::min(e.n_needed, e.size);
        }
        throw error(format("cannot allocate the draft's K/V cache (%lld slots) on %s", static_cast<long long>(n_rows),
                           dev_.name().c_str()));
    }
}

void draft_cache::release(llama_seq_id seq_id) {
    extent & e = extents_[seq_id];
    if (e.n_needed == 0) {
        return;
    }
    e.n_needed = 0;
    if (e.size <= n_keep) {
        clear(e.base, e.size);
    } else {
        free_.push_back(e);
        e = {};
    }
    if (is_loose()) {
        rebuild(); // may fail: then the larger tensors are kept
    }
}

void draft_cache::copy(llama_seq_id src, llama_seq_id dst, int32_t first, int32_t n) {
    for (ggml_tensor * t : pool_.tensors) {
        if (n > 0) {
            copy_rows(t, row(src, first), t, row(dst, first), n);
        }
    }
}

size_t draft_cache::state_size(int32_t n) const {
    size_t size = 0;
    for (const ggml_tensor * t : pool_.tensors) {
        size += n * t->nb[1];
    }
    return size;
}

void draft_cache::state_get(llama_seq_id seq_id, int32_t first, int32_t n, uint8_t * dst) const {
    for (const ggml_tensor * t : pool_.tensors) {
        ggml_backend_tensor_get(t, dst, row(seq_id, first) * t->nb[1], n * t->nb[1]);
        dst += n * t->nb[1];
    }
}

void draft_cache::state_set(llama_seq_id seq_id, int32_t first, int32_t n, const uint8_t * src) {
    for (ggml_tensor * t : pool_.tensors) {
        ggml_backend_tensor_set(t, src, row(seq_id, first) * t->nb[1], n * t->nb[1]);
        src += n * t->nb[1];
    }
}

} // namespace eagle3
