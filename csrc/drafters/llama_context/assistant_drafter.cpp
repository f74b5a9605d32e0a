#include "drafters/llama_context/assistant_drafter.h"

#include "drafter/state_header.h"
#include "drafter/time_scope.h"
#include "error.h"
#include "llama_ext.h"
#include "target/arch_table.h"
#include "target/graph_check.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace eagle3 {

namespace {

constexpr uint32_t state_magic = 0x31534147; // "GAS1"

struct state_header {
    uint32_t magic;
    int32_t  n_past;
    uint32_t has_row;
    int32_t  n_embd;
    uint64_t fingerprint;
    uint64_t size; // of the whole state
};

int32_t n_vocab_of(const llama_context * ctx) {
    return llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx)));
}

} // namespace

assistant_drafter::assistant_drafter(llama_context * ctx, llama_model * model, const assistant_file & file,
                                     const assistant_params & params) :
    context_drafter(ctx, model, file.path, file.n_embd_tgt, params.n_outputs_max, memory_kind::none),
    n_embd_tgt_(file.n_embd_tgt), limits_(checked_limits(ctx, n_vocab_of(ctx), params.n_ctx, params.n_seq_max)),
    last_(static_cast<size_t>(params.n_seq_max)) {
    check_outputs(params.n_outputs_max);
    llama_context *     ctx_tgt = llama_get_ctx_other(ctx);
    const llama_model * tgt     = ctx_tgt ? llama_get_model(ctx_tgt) : nullptr;
    if (tgt == nullptr || llama_model_n_embd(tgt) != n_embd_tgt_ || llama_model_n_embd_out(model) != n_embd_tgt_) {
        throw incompatible_draft_error(format("'%s': expected a target whose rows have %d values, found %d",
                                              file.path.c_str(), n_embd_tgt_, tgt ? llama_model_n_embd(tgt) : 0));
    }
    char arch[128] = "";
    llama_model_meta_val_str(tgt, "general.architecture", arch, sizeof(arch));
    boundaries_ = { llama_model_n_layer(tgt) + find_arch_graph(arch).nextn };

    std::vector<const ggml_tensor *> tensors;
    for (const auto & [name, tensor] : llama_internal_get_tensor_map(model)) {
        tensors.push_back(tensor);
        n_bytes_read_ += ggml_nbytes(tensor);
        projection_ = name == "nextn.pre_projection.weight" ? tensor : projection_;
    }
    if (projection_ == nullptr) {
        throw model_file_error(
            format("'%s': tensor 'nextn.pre_projection.weight' is missing: the file is damaged", file.path.c_str()));
    }
    fingerprint_ = draft_context::fingerprint_of(tensors);
    llama_set_embeddings_nextn(ctx, true, /*masked =*/true);
    check_graphs(ctx, std::min(params.n_outputs_max, n_batch()));
}

const assistant_drafter::last_row & assistant_drafter::last_of(llama_seq_id seq_id) const {
    limits_.check(seq_id);
    return last_[seq_id];
}

assistant_drafter::last_row & assistant_drafter::last_of(llama_seq_id seq_id) {
    limits_.check(seq_id);
    return last_[seq_id];
}

// rows of the target

void assistant_drafter::process(const float * rows, const llama_token * tokens, int32_t n_tokens, int32_t n_past,
                                llama_seq_id seq_id, const int32_t * row_ids, bool /*may_wait*/) {
    time_scope t(stats.t_process_us);
    last_row & last = last_of(seq_id);
    limits_.check_process(tokens, n_tokens, n_past, last.n_past);
    if (n_tokens <= 0) {
        return;
    }
    leave();
    read_text(seq_id, tokens, n_tokens);
    const float * row = rows + static_cast<size_t>(row_ids ? row_ids[n_tokens - 1] : n_tokens - 1) * n_embd_tgt_;
    last.row.assign(row, row + n_embd_tgt_);
    last.n_past += n_tokens;
}

int32_t assistant_drafter::truncate(int32_t n_past, llama_seq_id seq_id, bool /*same_next*/) {
    last_row & last = last_of(seq_id);
    leave();
    n_past = std::max(n_past, 0);
    if (n_past < last.n_past) {
        last = { n_past, {} };
    }
    return last.n_past;
}

void assistant_drafter::restart(int32_t n_past, llama_seq_id seq_id) {
    limits_.check_restart(n_past, seq_id);
    leave();
    last_of(seq_id) = { n_past, {} };
    restart_text(seq_id);
}

int32_t assistant_drafter::copy(llama_seq_id src, llama_seq_id dst, int32_t n_past, bool /*same_next*/) {
    limits_.check_copy(src, dst, n_past, last_of(src).n_past);
    restart(n_past, dst);
    if (n_past == last_of(src).n_past) {
        last_of(dst) = last_of(src);
    }
    return n_past;
}

std::vector<uint8_t> assistant_drafter::state_get(llama_seq_id seq_id) {
    const last_row &     last    = last_of(seq_id);
    const size_t         n_bytes = last.row.size() * sizeof(float);
    const state_header   header  = { state_magic, last.n_past,  last.row.empty() ? 0U : 1U,
                                     n_embd_tgt_, fingerprint_, sizeof(state_header) + n_bytes };
    std::vector<uint8_t> state(header.size);
    memcpy(state.data(), &header, sizeof(header));
    std::copy_n(reinterpret_cast<const uint8_t *>(last.row.data()), n_bytes, state.data() + sizeof(header));
    return state;
}

void assistant_drafter::state_set(const std::vector<uint8_t> & state, llama_seq_id seq_id) {
    limits_.check(seq_id);
    const auto header = read_header<state_header>(state, state_magic, "an assistant");
    if (header.fingerprint != fingerprint_ || header.n_embd != n_embd_tgt_) {
        throw incompatible_draft_error(format("the saved state belongs to another model than '%s'", path().c_str()));
    }
    const size_t n_floats = header.has_row == 1 ? static_cast<size_t>(n_embd_tgt_) : 0;
    if (header.n_past < 0 || header.n_past > n_ctx() || header.has_row > 1 || (n_floats > 0 && header.n_past == 0) ||
        state.size() != sizeof(header) + n_floats * sizeof(float)) {
        throw std::invalid_argument(
            format("the saved state has %d positions, the draft's context holds %d", header.n_past, n_ctx()));
    }
    leave();
    last_row & last = last_of(seq_id);
    last            = { header.n_past, std::vector<float>(n_floats) };
    std::copy_n(state.data() + sizeof(header), n_floats * sizeof(float), reinterpret_cast<uint8_t *>(last.row.data()));
}

// drafting

// An interrupted pass may have left other cells of the target than those of the text: then nothing is drafted.
bool assistant_drafter::can_begin(llama_seq_id seq_id) const {
    const last_row & last = last_of(seq_id);
    return !last.row.empty() && last.n_past < n_ctx() &&
           llama_memory_seq_pos_max(context().memory(), seq_id) == last.n_past - 1;
}

void assistant_drafter::add_waiting(llama_seq_id seq_id, llama_token id_last) {
    const last_row & last = last_of(seq_id);
    add_row(seq_id, id_last, last.n_past, last.row.data(), true);
}

// Keeps its own row, which is read in place of the target's.
int32_t assistant_drafter::keep_row(const draft_context & ctx, int32_t i_batch) {
    const float * row = llama_get_embeddings_nextn_ith(ctx.get(), i_batch);
    if (row == nullptr) {
        throw error("llama.cpp gave no row to draft on with");
    }
    rows_out_.insert(rows_out_.end(), row, row + n_embd_tgt_);
    return static_cast<int32_t>(rows_out_.size() / n_embd_tgt_) - 1;
}

void assistant_drafter::add_node(llama_seq_id id, llama_token token, int32_t pos, int32_t kept) {
    add_row(id, token, pos, rows_out_.data() + static_cast<size_t>(kept) * n_embd_tgt_, true);
}

} // namespace eagle3
