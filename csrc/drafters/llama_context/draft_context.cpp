#include "drafters/llama_context/draft_context.h"

#include "devices.h"
#include "drafter/time_scope.h"
#include "error.h"
#include "fnv1a.h"
#include "llama_ext.h"
#include "lm_head.h"
#include "load_guard.h"

#include "ggml-backend.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace eagle3 {

draft_context::draft_context(llama_context * ctx, llama_model * own_model) :
    model_(own_model), ctx_(ctx), matrices_(own_model ? model_matrices(own_model) : kernels::matrices()),
    shares_cells_(llama_n_ctx_seq(ctx) == llama_n_ctx(ctx)) {}

void draft_context::use_cpu_kernels(const kernels::row_limits & limits) {
    cpu_kernels_.reset();
    cpu_kernels_ = std::make_unique<kernels::cpu_kernels>(matrices_, limits);
}

const ggml_tensor * draft_context::find_output_matrix(int32_t n_outputs) {
    llama_context * const ctx    = ctx_.get();
    const uint32_t        n_seqs = llama_n_seq_max(ctx);
    // the shape of the largest pass, for which llama.cpp has allocated memory
    const uint32_t        n_rows = std::max(n_seqs, std::min(llama_n_ctx(ctx), llama_n_ubatch(ctx)));
    const ggml_tensor *   node   = nullptr;
    {
        const abort_guard guard;
        ggml_cgraph *     graph = llama_graph_reserve(ctx, n_rows, n_seqs, n_outputs);
        node                    = graph ? ggml_graph_get_tensor(graph, "result_output") : nullptr;
    }
    while (node && node->op != GGML_OP_MUL_MAT) { // caps and scales follow the product
        node = node->src[0];
    }
    const int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx)));
    const auto *  matrix  = node ? node->src[0] : nullptr;
    output_matrix_        = matrix && ggml_nrows(matrix) == n_vocab && kernels::is_computed(matrix) ? matrix : nullptr;
    return output_matrix_;
}

void draft_context::decode(const llama_batch & batch, int64_t & time_us, const kernels::channel_ranges * ranges) {
    time_scope                     t(time_us);
    const kernels::limited_product limited(output_matrix_, ranges);
    int32_t                        ret = 0;
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

const float * draft_context::logits(int32_t i_row) const {
    const float * logits = llama_get_logits_ith(ctx_.get(), i_row);
    if (logits == nullptr) {
        throw error("llama.cpp gave no logits of a drafted row");
    }
    return logits;
}

bool draft_context::trim(llama_seq_id seq_id, int32_t end) {
    return llama_memory_seq_pos_max(memory(), seq_id) < end || llama_memory_seq_rm(memory(), seq_id, end, -1);
}

void draft_context::clear(llama_seq_id seq_id) {
    llama_memory_seq_rm(memory(), seq_id, -1, -1);
}

void draft_context::copy(llama_seq_id src, llama_seq_id dst, int32_t end) {
    if (shares_cells_) {
        llama_memory_seq_cp(memory(), src, dst, 0, end);
        return;
    }
    // llama.cpp copies a stream's cells only as a whole, and not at once
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

std::string draft_context::device_of(const ggml_tensor * tensor) {
    const ggml_backend_dev_t dev = ggml_backend_buft_get_device(ggml_backend_buffer_get_type(tensor->buffer));
    return dev ? ggml_backend_dev_name(dev) : "CPU"; // a file that is mapped is on none
}

uint64_t draft_context::fingerprint_of(const std::vector<const ggml_tensor *> & tensors) {
    uint64_t hash = fnv1a_start;
    for (const ggml_tensor * t : tensors) {
        hash = fnv1a(fnv1a(hash, t->name, strlen(t->name)), t->ne, sizeof(t->ne));
        if (can_get(t)) {
            std::vector<uint8_t> bytes(std::min<size_t>(ggml_nbytes(t), 256));
            ggml_backend_tensor_get(t, bytes.data(), 0, bytes.size());
            hash = fnv1a(hash, bytes.data(), bytes.size());
        }
    }
    return hash;
}

void draft_batch::clear() {
    tokens.clear();
    embd.clear();
    pos.clear();
    seq_ids.clear();
    is_out.clear();
}

void draft_batch::add(llama_seq_id seq_id, llama_pos pos_row, bool is_out_row) {
    seq_ids.push_back(seq_id);
    pos.push_back(pos_row);
    is_out.push_back(is_out_row);
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
