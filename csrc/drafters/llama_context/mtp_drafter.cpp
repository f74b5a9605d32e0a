#include "drafters/llama_context/mtp_drafter.h"

#include "drafter/time_scope.h"
#include "error.h"
#include "llama_ext.h"
#include "lm_head.h"
#include "load_guard.h"
#include "target/arch_table.h"
#include "target/graph_check.h"

#include <algorithm>
#include <cstring>

namespace eagle3 {

namespace {

std::string arch_of(const llama_model * model) {
    char arch[128] = "";
    llama_model_meta_val_str(model, "general.architecture", arch, sizeof(arch));
    return arch;
}

std::string prefix_of(int32_t il) {
    return "blk." + std::to_string(il) + ".";
}

} // namespace

mtp_drafter::mtp_drafter(llama_context * ctx, llama_model * own_model, const std::string & path,
                         const mtp_params & params, std::vector<draft_context> further) :
    context_drafter(ctx, own_model, path, llama_model_n_embd_out(llama_get_model(ctx)), params.n_outputs_max,
                    memory_kind::cells), // a block has attention, even if the layers before it have a state
    n_embd_(llama_model_n_embd_out(llama_get_model(ctx))),
    sequences_(n_embd_, checked_limits(ctx, llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx))),
                                       params.n_ctx, params.n_seq_max)) {
    const llama_model * model   = llama_get_model(ctx);
    const std::string   arch    = arch_of(model);
    const int32_t       n_layer = llama_model_n_layer(model);
    const arch_graph    graph   = find_arch_graph(arch);
    if (llama_model_n_layer_nextn(model) < 1) {
        throw incompatible_draft_error(format(
            "'%s' has no block for multi-token prediction (key %s.nextn_predict_layers)", path.c_str(), arch.c_str()));
    }
    if (!graph.block || (graph.nextn < 2 && llama_model_n_embd(model) != n_embd_)) {
        throw incompatible_draft_error(
            format("'%s' (%s): the rows that its block for multi-token prediction reads cannot be read here",
                   path.c_str(), arch.c_str()));
    }
    check_outputs(params.n_outputs_max);
    boundaries_ = { n_layer + graph.nextn };

    std::vector<const ggml_tensor *> own;
    const std::string                prefix = prefix_of(n_layer);
    for (size_t i = 0; i <= further.size(); ++i) {
        const std::string of_block = prefix_of(n_layer + static_cast<int32_t>(i));
        for (const auto & [name, tensor] : llama_internal_get_tensor_map(model)) {
            if (name.compare(0, of_block.size(), of_block) == 0) {
                own.push_back(tensor);
                eh_proj_ = name == prefix + "nextn.eh_proj.weight" ? tensor : eh_proj_;
                n_bytes_read_ += ggml_nbytes(tensor);
            }
        }
    }
    if (eh_proj_ == nullptr) {
        throw incompatible_draft_error(
            format("'%s': the block for multi-token prediction was not loaded (load_mtp), or "
                   "the file has no tensor '%snextn.eh_proj.weight'",
                   path.c_str(), prefix.c_str()));
    }
    if (const ggml_tensor * lm_head = find_lm_head(model)) {
        n_bytes_read_ += ggml_nbytes(lm_head);
    }
    fingerprint_ = draft_context::fingerprint_of(own);
    find_rows_kind(ctx, 0);
    check_graphs(ctx, std::min(params.n_outputs_max, n_batch()));
    for (draft_context & other : further) {
        further_.push_back({ std::move(other), {} });
        llama_context * const ctx_block = further_.back().ctx.get();
        const auto            i_block   = static_cast<int32_t>(further_.size());
        checked_limits(ctx_block, n_vocab(), params.n_ctx, params.n_seq_max);
        llama_set_nextn_layer_offset(ctx_block, i_block);
        find_rows_kind(ctx_block, i_block);
        check_graphs(ctx_block, std::min(params.n_outputs_max, n_batch()));
    }
}

// Some graphs return the block's rows for all rows of a batch, others only for rows with logits. llama.cpp must be told
// which, since it does not look.
void mtp_drafter::find_rows_kind(llama_context * ctx, int32_t i_block) {
    const uint32_t      n_seqs   = llama_n_seq_max(ctx);
    const auto          n_tokens = static_cast<int64_t>(2 * n_seqs);
    const ggml_tensor * rows     = nullptr;
    const std::string   name = prefix_of(llama_model_n_layer(llama_get_model(ctx)) + i_block) + "nextn.eh_proj.weight";
    bool                is_there = false;
    try {
        const abort_guard guard;
        llama_set_embeddings_nextn(ctx, true, /*masked =*/false);
        ggml_cgraph * graph = llama_graph_reserve(ctx, 2 * n_seqs, n_seqs, /*n_outputs =*/1);
        for (int i = 0; graph && i < ggml_graph_n_nodes(graph); ++i) {
            const ggml_tensor * node = ggml_graph_node(graph, i);
            if (strcmp(node->name, "h_nextn") == 0) {
                rows = node;
            }
            is_there = is_there || (node->src[0] && name == node->src[0]->name);
        }
    } catch (const std::exception & e) {
        throw model_file_error(
            format("'%s': llama.cpp cannot build the graph of its block: %s", path().c_str(), e.what()));
    }
    if (!is_there) {
        throw incompatible_draft_error(
            format("'%s': llama.cpp's graph does not read '%s'", path().c_str(), name.c_str()));
    }
    if (rows == nullptr || rows->ne[0] != n_embd_ || (rows->ne[1] != n_tokens && rows->ne[1] != 1)) {
        throw incompatible_draft_error(
            format("'%s': llama.cpp's graph of its block gives no rows to draft on with", path().c_str()));
    }
    llama_set_embeddings_nextn(ctx, true, /*masked =*/rows->ne[1] == 1);
}

// rows of the target

// Writes all waiting rows but the last, whose next token is not known yet.
void mtp_drafter::flush(llama_seq_id seq_id) {
    write_waiting(sequences_[seq_id].n_rows() - 1, [&](int32_t n_rows) { write(seq_id, n_rows); });
}

// Writes the first n_rows waiting rows.
void mtp_drafter::write(llama_seq_id seq_id, int32_t n_rows) {
    draft_sequence & seq = sequences_[seq_id];
    trim(seq_id);
    clear_batch();
    for (int32_t i = 0; i < n_rows; ++i) {
        add_row(seq_id, seq.tokens()[i + 1], seq.pos_first() + i, seq.rows() + static_cast<size_t>(i) * n_embd_, false);
    }
    compute();
    seq.on_written(n_rows);
}

void mtp_drafter::process(const float * rows, const llama_token * tokens, int32_t n_tokens, int32_t n_past,
                          llama_seq_id seq_id, const int32_t * row_ids, bool may_wait) {
    time_scope t(stats.t_process_us);
    sequences_.check_process(tokens, n_tokens, n_past, seq_id);
    if (n_tokens <= 0) {
        return;
    }
    leave();
    read_text(seq_id, tokens, n_tokens);
    sequences_.append(rows, tokens, n_tokens, seq_id, row_ids, may_wait, n_batch(),
                      [this](llama_seq_id id) { flush(id); });
}

// drafting

void mtp_drafter::prepare(llama_seq_id seq_id) {
    draft_sequence & seq = sequences_[seq_id];
    if (seq.seeded()) {
        seq.restore(seq.pos_start(), seq.pos_first(), { seq.rows(), seq.rows() + n_embd_ }, { seq.tokens()[0] },
                    std::nullopt);
    }
    trim(seq_id);
}

void mtp_drafter::add_waiting(llama_seq_id seq_id, llama_token id_last) {
    const draft_sequence & seq = sequences_[seq_id];
    const int32_t          n   = seq.n_rows();
    for (int32_t i = 0; i < n; ++i) {
        const bool is_last = i + 1 == n;
        add_row(seq_id, is_last ? id_last : seq.tokens()[i + 1], seq.pos_first() + i,
                seq.rows() + static_cast<size_t>(i) * n_embd_, is_last);
    }
}

void mtp_drafter::on_caught_up(llama_seq_id seq_id, llama_token id_last) {
    sequences_[seq_id].on_proposed(id_last);
}

// Keeps the block's own row, which is read in place of the target's.
int32_t mtp_drafter::keep_row(const draft_context & ctx, int32_t i_batch) {
    const float * row = llama_get_embeddings_nextn_ith(ctx.get(), i_batch);
    if (row == nullptr) {
        throw error("llama.cpp gave no row to draft on with");
    }
    rows_out_.insert(rows_out_.end(), row, row + n_embd_);
    return static_cast<int32_t>(rows_out_.size() / n_embd_) - 1;
}

void mtp_drafter::add_node(llama_seq_id id, llama_token token, int32_t pos, int32_t kept) {
    add_row(id, token, pos, rows_out_.data() + static_cast<size_t>(kept) * n_embd_, true);
}

} // namespace eagle3
