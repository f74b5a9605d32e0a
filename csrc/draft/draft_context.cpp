#include "draft/draft_context.h"

#include "draft/time_scope.h"
#include "error.h"
#include "load_guard.h"

#include <algorithm>
#include <stdexcept>

namespace eagle3 {

void draft_context::decode(const llama_batch & batch, int64_t & time_us) {
    time_scope t(time_us);
    int32_t    ret = 0;
    try {
        const abort_guard guard(abort_guard::outside_kernels);
        ret = llama_decode(ctx_.get(), batch);
        llama_synchronize(ctx_.get());
    } catch (const std::exception & e) {
        throw error(format("the draft's llama_decode failed: %s", e.what()));
    }
    if (ret == 1) {
        throw context_full_error(
            format("no room for %d rows in the draft's context of %u cells", batch.n_tokens, llama_n_ctx(ctx_.get())));
    }
    if (ret != 0) {
        throw error(format("the draft's llama_decode failed with %d", ret));
    }
}

void draft_context::trim(llama_seq_id seq_id, int32_t end) {
    if (llama_memory_seq_pos_max(memory(), seq_id) >= end) {
        llama_memory_seq_rm(memory(), seq_id, end, -1);
    }
}

void draft_context::clear(llama_seq_id seq_id) {
    llama_memory_seq_rm(memory(), seq_id, -1, -1);
}

void draft_context::copy(llama_seq_id src, llama_seq_id dst, int32_t end) {
    if (shares_cells()) {
        llama_memory_seq_cp(memory(), src, dst, 0, end);
        return;
    }
    // of a stream llama.cpp copies all cells or none, and late
    const std::vector<uint8_t> cells = save(src);
    load(cells.data(), cells.size(), dst, 0, llama_memory_seq_pos_max(memory(), src) + 1);
    trim(dst, end);
}

std::vector<uint8_t> draft_context::save(llama_seq_id seq_id) const {
    std::vector<uint8_t> cells(llama_state_seq_get_size(ctx_.get(), seq_id));
    cells.resize(llama_state_seq_get_data(ctx_.get(), cells.data(), cells.size(), seq_id));
    return cells;
}

void draft_context::load(const uint8_t * cells, size_t n_bytes, llama_seq_id seq_id, int32_t pos_start, int32_t end) {
    size_t n_read = 0;
    {
        const abort_guard guard;
        n_read = llama_state_seq_set_data(ctx_.get(), cells, n_bytes, seq_id);
    }
    if (n_read == 0) {
        clear(seq_id);
        throw error("the draft's context does not take the saved state: it is damaged, or there is no room for it");
    }
    trim(seq_id, end);
    if (llama_memory_seq_pos_min(memory(), seq_id) < pos_start ||
        llama_memory_seq_pos_max(memory(), seq_id) != end - 1) {
        clear(seq_id);
        throw std::invalid_argument("the saved state of the draft is damaged: its positions are not what they were");
    }
}

void draft_batch::clear() {
    tokens.clear();
    embd.clear();
    pos.clear();
    seq_ids.clear();
    is_out.clear();
}

llama_batch draft_batch::get() {
    n_seq_id_.assign(seq_ids.size(), 1);
    seq_id_.resize(seq_ids.size());
    std::transform(seq_ids.begin(), seq_ids.end(), seq_id_.begin(), [](llama_seq_id & id) { return &id; });
    llama_batch batch = {};
    batch.n_tokens    = n_rows();
    batch.token       = tokens.empty() ? nullptr : tokens.data();
    batch.embd        = embd.empty() ? nullptr : embd.data();
    batch.pos         = pos.data();
    batch.n_seq_id    = n_seq_id_.data();
    batch.seq_id      = seq_id_.data();
    batch.logits      = is_out.data();
    return batch;
}

} // namespace eagle3
