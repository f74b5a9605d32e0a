#include "drafters/llama_context/dflash_drafter.h"

#include "drafter/time_scope.h"
#include "drafters/llama_context/best_of_row.h"
#include "error.h"
#include "llama_ext.h"
#include "lm_head.h"
#include "target/graph_check.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace eagle3 {

namespace {

draft_sequences make_sequences(const llama_context * ctx, const dflash_hparams & hparams,
                               const dflash_params & params) {
    const auto n_ids = static_cast<int32_t>(llama_n_seq_max(ctx));
    const auto n_pos = static_cast<int32_t>(llama_n_ctx_seq(ctx)) - hparams.block_size;
    if (params.n_seq_max < 1 || params.n_seq_max > n_ids || params.n_ctx < 1 || params.n_ctx > n_pos) {
        throw std::invalid_argument(format("expected n_seq_max in 1..%d and n_ctx in 1..%d, found %d and %d", n_ids,
                                           n_pos, params.n_seq_max, params.n_ctx));
    }
    return { hparams.n_embd_feat(), { hparams.n_vocab, params.n_ctx, params.n_seq_max } };
}

} // namespace

dflash_drafter::dflash_drafter(llama_model * model, llama_context * ctx, const llama_model * model_tgt,
                               const dflash_hparams & hparams, const dflash_params & params) :
    ctx_(ctx, model), hparams_(hparams),
    n_batch_(static_cast<int32_t>(std::min(llama_n_batch(ctx), llama_n_ubatch(ctx)))),
    n_pos_(llama_model_rope_type(model) == LLAMA_ROPE_TYPE_MROPE ? 4 : 1),
    sequences_(make_sequences(ctx, hparams, params)), foresight_(static_cast<size_t>(params.n_seq_max)) {
    if (n_batch_ < hparams_.block_size) {
        throw std::invalid_argument(
            format("expected n_batch and n_ubatch of at least %d, a block, found %d", hparams_.block_size, n_batch_));
    }
    if (llama_vocab_n_tokens(llama_model_get_vocab(model)) != hparams_.n_vocab ||
        llama_model_n_embd(model) != hparams_.n_embd) {
        throw model_file_error(format("'%s' is not the file that was loaded", hparams_.path.c_str()));
    }
    std::vector<const ggml_tensor *> tensors;
    for (const auto & named : llama_internal_get_tensor_map(model)) {
        tensors.push_back(named.second);
    }
    fingerprint_ = draft_context::fingerprint_of(tensors);
    for (const ggml_tensor * tensor : matrices()) {
        n_bytes_read_ += ggml_nbytes(tensor);
    }
    const ggml_tensor * lm_head_tgt = find_lm_head(model) ? nullptr : find_lm_head(model_tgt);
    n_bytes_read_ += lm_head_tgt ? ggml_nbytes(lm_head_tgt) : 0;
    llama_set_causal_attn(ctx, hparams_.is_causal);
    if (hparams_.has_confidence || hparams_.kind == block_kind::dflash2) {
        llama_set_embeddings_nextn(ctx, true, /*masked =*/hparams_.kind != block_kind::dflash2);
    }
    check_graphs(ctx);
}

// rows of the target

// Adds the first n waiting rows to the batch.
void dflash_drafter::add_rows(llama_seq_id seq_id, int32_t n) {
    const draft_sequence & seq = sequences_[seq_id];
    ctx_.trim(seq_id, seq.pos_first());
    for (int32_t i = 0; i < n; ++i) {
        batch_.add(seq_id, seq.pos_first() + i, false);
    }
    batch_.embd.insert(batch_.embd.end(), seq.rows(), seq.rows() + static_cast<size_t>(n) * n_embd_feat());
}

// Computes the K/V of the batch's rows.
void dflash_drafter::compute_rows() {
    const auto n = static_cast<size_t>(batch_.n_rows());
    if (n == 0) {
        return;
    }
    if (n_pos_ > 1) { // as for text, time, height and width are the same; the fourth is not used
        batch_.pos.resize(n_pos_ * n);
        for (size_t i = n; i < batch_.pos.size(); ++i) {
            batch_.pos[i] = i < 3 * n ? batch_.pos[i - n] : 0;
        }
    }
    n_block_rows_ = 0;
    ctx_.decode(batch_.get(), t_graph_us_);
    for (const llama_seq_id seq_id : batch_.seq_ids) {
        sequences_[seq_id].on_written(1);
    }
    batch_.clear();
}

void dflash_drafter::take_in(llama_seq_id seq_id, int32_t n) {
    batch_.clear();
    while (n > 0) {
        const int32_t n_now = std::min(n, n_batch_);
        add_rows(seq_id, n_now);
        compute_rows();
        n -= n_now;
    }
}

// Evaluates the waiting rows of all participants in as few passes as possible.
void dflash_drafter::take_in_all() {
    batch_.clear();
    for (const participant & part : participants_) {
        int32_t n_left = sequences_[part.seq_id].n_rows();
        while (n_left > 0) {
            const int32_t n = std::min(n_left, n_batch_ - batch_.n_rows());
            add_rows(part.seq_id, n);
            n_left -= n;
            if (batch_.n_rows() == n_batch_) {
                compute_rows();
            }
        }
    }
    compute_rows();
}

void dflash_drafter::flush(llama_seq_id seq_id) {
    take_in(seq_id, sequences_[seq_id].n_rows() - 1);
}

void dflash_drafter::process(const float * rows, const llama_token * tokens, int32_t n_tokens, int32_t n_past,
                             llama_seq_id seq_id, const int32_t * row_ids, bool may_wait) {
    time_scope t(stats.t_process_us);
    sequences_.check_process(tokens, n_tokens, n_past, seq_id);
    if (n_tokens <= 0) {
        return;
    }
    leave();
    sequences_.append(rows, tokens, n_tokens, seq_id, row_ids, may_wait, n_batch_,
                      [this](llama_seq_id id) { flush(id); });
}

// blocks

void dflash_drafter::add_block(llama_seq_id seq_id, llama_token id_last, int32_t n_steps) {
    const int32_t first = sequences_[seq_id].pos_first();
    ctx_.trim(seq_id, first);
    for (int32_t i = 0; i < n_rows_of_block(n_steps); ++i) {
        batch_.tokens.push_back(i == 0 ? id_last : hparams_.mask_token);
        // the graph makes logits of all rows; with a selector they are not used
        batch_.add(seq_id, first + i, hparams_.kind != block_kind::dflash2);
    }
}

void dflash_drafter::compute_blocks() {
    n_block_rows_ = 0;
    ctx_.decode(batch_.get(), t_graph_us_);
    n_block_rows_ = hparams_.kind == block_kind::dflash2 ? 0 : batch_.n_rows();
    batch_.clear();
}

// The best tokens of a row of the last pass.
std::vector<draft_candidate> dflash_drafter::candidates(int32_t i_row, int32_t n_top) {
    const float * logits = ctx_.logits(i_row);
    if (hparams_.logit_scale > 0.0f || hparams_.final_logit_softcap > 0.0f) {
        const float scale = hparams_.logit_scale > 0.0f ? hparams_.logit_scale : 1.0f;
        const float cap   = hparams_.final_logit_softcap;
        scratch_.resize(hparams_.n_vocab);
        std::transform(logits, logits + hparams_.n_vocab, scratch_.begin(),
                       [=](float x) { return cap > 0.0f ? cap * std::tanh(scale * x / cap) : scale * x; });
        logits = scratch_.data();
    }
    const int32_t n_known = hparams_.n_vocab_dft > 0 ? hparams_.n_vocab_dft : hparams_.n_vocab;
    return best_of_row(logits, hparams_.n_vocab, std::min(n_top, n_known));
}

dflash_drafter::drafted_row dflash_drafter::read_row(const foresight & known, int32_t i_row, int32_t n_top) {
    drafted_row row;
    if (hparams_.kind == block_kind::dflash2) {
        const float * lattice = llama_get_embeddings_nextn_ith(ctx_.get(), i_row);
        if (lattice == nullptr) {
            throw error("llama.cpp gave no candidates of a drafted row");
        }
        row.lattice.assign(lattice, lattice + static_cast<size_t>(hparams_.selector_top_k) *
                                                  static_cast<size_t>(hparams_.selector_top_k + 1));
        return row;
    }
    row.found = candidates(i_row, known.n_top(n_top));
    if (!hparams_.has_confidence || known.noise || row.found.empty()) {
        return row;
    }
    // the probability that the best token is accepted; the others share the rest in the same proportions as before
    const float * confidence = llama_get_embeddings_nextn_ith(ctx_.get(), i_row);
    if (confidence && confidence[0] >= 0.0f && confidence[0] <= 1.0f) {
        const float rest = 1.0f - row.found.front().p;
        for (draft_candidate & c : row.found) {
            c.p *= rest > 0.0f ? (1.0f - confidence[0]) / rest : 0.0f;
        }
        row.found.front().p = confidence[0];
    }
    return row;
}

// The best tokens after the drafted tokens `path`.
std::vector<draft_candidate> dflash_drafter::best_after(const participant & part, const std::vector<llama_token> & path,
                                                        int32_t n_top) {
    const size_t                 level = path.size();
    std::vector<draft_candidate> found = part.levels[level].found;
    if (hparams_.kind == block_kind::dflash2) {
        const auto    top_k   = static_cast<size_t>(hparams_.selector_top_k);
        const auto &  lattice = part.levels[level].lattice;
        const float * scores  = lattice.data() + top_k;
        if (level > 0) {
            const auto & before = part.levels[level - 1].lattice;
            const auto   first  = before.begin();
            const auto   last   = first + static_cast<std::ptrdiff_t>(top_k);
            scores += top_k * static_cast<size_t>(std::find(first, last, static_cast<float>(path.back())) - first);
        }
        const float best = *std::max_element(scores, scores + top_k);
        float       sum  = 0.0f;
        for (size_t i = 0; i < top_k; ++i) {
            const float e = std::exp(scores[i] - best);
            found.push_back({ static_cast<int32_t>(lattice[i]), std::isfinite(e) ? e : 0.0f });
            sum += found.back().p;
        }
        for (draft_candidate & c : found) {
            c.p /= sum;
        }
        std::stable_sort(found.begin(), found.end(), [](const auto & a, const auto & b) { return a.p > b.p; });
    }
    part.known->order(
        path, [this](int32_t id) { return std::binary_search(left_out_.begin(), left_out_.end(), id) ? -1 : id; },
        found, n_top);
    return found;
}

std::vector<float> dflash_drafter::block_logits() const {
    std::vector<float> result;
    for (int32_t i = 0; i < n_block_rows_; ++i) {
        const float * logits = ctx_.logits(i);
        result.insert(result.end(), logits, logits + hparams_.n_vocab);
    }
    return result;
}

// drafting

// Starts a draft for those of the sequences that can begin one.
void dflash_drafter::enter(const std::vector<llama_seq_id> & seq_ids, const std::vector<llama_token> & ids_last) {
    sequences_.check_begin(seq_ids, ids_last);
    leave();
    for (size_t i = 0; i < seq_ids.size(); ++i) {
        const draft_sequence & seq = sequences_[seq_ids[i]];
        if (seq.n_past() > seq.pos_start()) {
            participants_.push_back({ seq_ids[i], ids_last[i], &foresight_[seq_ids[i]], {} });
        }
    }
}

// Removes what was drafted.
void dflash_drafter::leave() {
    for (const participant & part : participants_) {
        ctx_.trim(part.seq_id, sequences_[part.seq_id].pos_first());
    }
    participants_.clear();
    nodes_.clear();
}

// Computes a block for each participant, all of the same length, as many in a pass as it has room for.
void dflash_drafter::draft(int32_t top_k, int32_t n_steps) {
    take_in_all();
    // in another order llama.cpp would split blocks of several streams
    std::sort(participants_.begin(), participants_.end(),
              [](const participant & a, const participant & b) { return a.seq_id < b.seq_id; });
    const int32_t n_rows = n_rows_of_block(n_steps);
    const size_t  n_most = static_cast<size_t>(n_batch_ / n_rows);
    for (size_t first = 0; first < participants_.size(); first += n_most) {
        const size_t n = std::min(participants_.size() - first, n_most);
        batch_.clear();
        for (size_t j = first; j < first + n; ++j) {
            add_block(participants_[j].seq_id, participants_[j].id_last, n_steps);
        }
        compute_blocks();
        for (size_t j = 0; j < n; ++j) {
            participant & part = participants_[first + j];
            for (int32_t i = 0; i < n_steps; ++i) {
                const int32_t i_row = static_cast<int32_t>(j + 1) * n_rows - n_steps + i;
                part.levels.push_back(read_row(*part.known, i_row, top_k));
            }
        }
    }
    stats.n_propose++;
    stats.n_steps++;
}

void dflash_drafter::append_nodes(const participant & part, int32_t parent, int32_t top_k) {
    nodes_.append(part.seq_id, parent, best_after(part, nodes_.path(parent), top_k));
}

const dflash_drafter::participant & dflash_drafter::participant_of(llama_seq_id seq_id) const {
    return *std::find_if(participants_.begin(), participants_.end(),
                         [seq_id](const participant & part) { return part.seq_id == seq_id; });
}

void dflash_drafter::begin(const std::vector<llama_seq_id> & seq_ids, const std::vector<llama_token> & ids_last,
                           int32_t top_k, int32_t n_steps) {
    time_scope t(stats.t_propose_us);
    draft_nodes::check_begin(top_k, n_steps, n_unroll());
    enter(seq_ids, ids_last);
    if (participants_.empty()) {
        return;
    }
    draft(top_k, n_steps);
    for (const participant & part : participants_) {
        append_nodes(part, -1, top_k);
    }
}

void dflash_drafter::expand(const std::vector<int32_t> & nodes, int32_t top_k) {
    time_scope t(stats.t_propose_us);
    nodes_.mark_expanded(nodes, top_k);
    for (const int32_t i : nodes) {
        const draft_node    node = nodes_[i];
        const participant & part = participant_of(node.seq_id);
        if (node.depth < static_cast<int32_t>(part.levels.size()) && node.depth <= n_ctx() - n_past(node.seq_id)) {
            append_nodes(part, i, top_k);
        }
    }
}

} // namespace eagle3
