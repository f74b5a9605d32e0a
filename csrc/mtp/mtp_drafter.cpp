#include "mtp/mtp_drafter.h"

#include "draft/foresight.h"
#include "draft/time_scope.h"
#include "error.h"
#include "fnv1a.h"
#include "llama_ext.h"
#include "lm_head.h"
#include "load_guard.h"
#include "mtp/candidates.h"
#include "target/arch_table.h"
#include "target/graph_check.h"

#include "ggml-backend.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace eagle3 {

namespace {

std::string arch_of(const llama_model * model) {
    char arch[128] = "";
    llama_model_meta_val_str(model, "general.architecture", arch, sizeof(arch));
    return arch;
}

// what tells one block from another: names and the first bytes of its tensors
uint64_t fingerprint_of(const std::vector<const ggml_tensor *> & tensors) {
    uint64_t hash = fnv1a_start;
    for (const ggml_tensor * t : tensors) {
        std::vector<uint8_t> bytes(std::min<size_t>(ggml_nbytes(t), 256));
        ggml_backend_tensor_get(t, bytes.data(), 0, bytes.size());
        hash = fnv1a(fnv1a(hash, t->name, strlen(t->name)), bytes.data(), bytes.size());
    }
    return hash;
}

draft_sequences make_sequences(const llama_context * ctx, const mtp_params & params) {
    const auto n_ids = static_cast<int32_t>(llama_n_seq_max(ctx));
    const auto n_pos = static_cast<int32_t>(llama_n_ctx_seq(ctx));
    if (params.n_seq_max < 1 || params.n_seq_max > n_ids || params.n_ctx < 1 || params.n_ctx > n_pos) {
        throw std::invalid_argument(format("expected n_seq_max in 1..%d and n_ctx in 1..%d, found %d and %d", n_ids,
                                           n_pos, params.n_seq_max, params.n_ctx));
    }
    const llama_model * model = llama_get_model(ctx);
    return { llama_model_n_embd(model), llama_vocab_n_tokens(llama_model_get_vocab(model)), params.n_ctx,
             params.n_seq_max };
}

} // namespace

mtp_drafter::mtp_drafter(llama_context * ctx, const std::string & path, const mtp_params & params) :
    ctx_(ctx), path_(path), n_embd_(0), n_batch_(0), n_out_max_(0),
    shares_cells_(llama_n_ctx_seq(ctx) == llama_n_ctx(ctx)), sequences_(make_sequences(ctx, params)) {
    const llama_model * model   = llama_get_model(ctx);
    const std::string   arch    = arch_of(model);
    const int32_t       n_layer = llama_model_n_layer(model);
    const int32_t       nextn   = find_arch_graph(arch).nextn;
    if (llama_model_n_layer_nextn(model) < 1) {
        throw incompatible_draft_error(format(
            "'%s' has no block for multi-token prediction (key %s.nextn_predict_layers)", path.c_str(), arch.c_str()));
    }
    if (nextn < 0 || llama_model_n_embd_out(model) != llama_model_n_embd(model)) {
        throw incompatible_draft_error(
            format("'%s' (%s): the rows that its block for multi-token prediction reads cannot be read here",
                   path.c_str(), arch.c_str()));
    }
    const auto n_ids = static_cast<int32_t>(llama_n_seq_max(ctx));
    boundaries_      = { n_layer + nextn };
    n_embd_          = llama_model_n_embd(model);
    n_batch_         = static_cast<int32_t>(std::min(llama_n_batch(ctx), llama_n_ctx(ctx)));
    n_out_max_       = std::min(params.n_outputs_max, n_batch_);
    if (n_batch_ < params.n_seq_max || params.n_outputs_max < n_ids) {
        throw std::invalid_argument(
            format("expected n_batch >= %d and n_outputs_max >= %d, the numbers of sequences, found %d and %d",
                   params.n_seq_max, n_ids, n_batch_, params.n_outputs_max));
    }
    noise_.resize(params.n_seq_max);
    for (llama_seq_id id = n_ids - 1; shares_cells_ && id >= params.n_seq_max; --id) {
        ids_free_.push_back(id);
    }

    std::vector<const ggml_tensor *> own;
    const std::string                prefix = "blk." + std::to_string(n_layer) + ".";
    for (const auto & [name, tensor] : llama_internal_get_tensor_map(model)) {
        if (name.compare(0, prefix.size(), prefix) == 0) {
            own.push_back(tensor);
            eh_proj_ = name == prefix + "nextn.eh_proj.weight" ? tensor : eh_proj_;
            n_bytes_read_ += ggml_nbytes(tensor);
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
    fingerprint_ = fingerprint_of(own);
    find_rows_kind();
    check_graphs(ctx, n_out_max_);
}

// Graphs give the block's rows for all rows of a batch or for those alone that get logits; llama.cpp copies them by
// what it is told, not by what is there.
void mtp_drafter::find_rows_kind() {
    const uint32_t      n_seqs   = llama_n_seq_max(ctx_.get());
    const auto          n_tokens = static_cast<int64_t>(2 * n_seqs);
    const ggml_tensor * rows     = nullptr;
    try {
        const abort_guard guard;
        llama_set_embeddings_nextn(ctx_.get(), true, /*masked =*/false);
        ggml_cgraph * graph = llama_graph_reserve(ctx_.get(), 2 * n_seqs, n_seqs, /*n_outputs =*/1);
        for (int i = 0; graph && i < ggml_graph_n_nodes(graph); ++i) {
            const ggml_tensor * node = ggml_graph_node(graph, i);
            if (strcmp(node->name, "h_nextn") == 0) {
                rows = node;
            }
        }
    } catch (const std::exception & e) {
        throw model_file_error(
            format("'%s': llama.cpp cannot build the graph of its block: %s", path_.c_str(), e.what()));
    }
    if (rows == nullptr || rows->ne[0] != n_embd_ || (rows->ne[1] != n_tokens && rows->ne[1] != 1)) {
        throw incompatible_draft_error(
            format("'%s': llama.cpp's graph of its block gives no rows to draft on with", path_.c_str()));
    }
    llama_set_embeddings_nextn(ctx_.get(), true, /*masked =*/rows->ne[1] == 1);
}

std::string mtp_drafter::device() const {
    const ggml_backend_dev_t dev = ggml_backend_buft_get_device(ggml_backend_buffer_get_type(eh_proj_->buffer));
    return dev ? ggml_backend_dev_name(dev) : "CPU"; // a file that is mapped is on none
}

// batches

void mtp_drafter::pass::clear() {
    tokens.clear();
    pos.clear();
    seq_id.clear();
    embd.clear();
    is_out.clear();
}

void mtp_drafter::add_row(llama_seq_id id, llama_token token, int32_t pos, const float * row, bool is_out) {
    pass_.tokens.push_back(token);
    pass_.pos.push_back(pos);
    pass_.seq_id.push_back(id);
    pass_.embd.insert(pass_.embd.end(), row, row + n_embd_);
    pass_.is_out.push_back(is_out);
}

void mtp_drafter::compute() {
    const size_t n = pass_.tokens.size();
    pass_.n_seq_id.assign(n, 1);
    pass_.seq_ids.resize(n);
    for (size_t i = 0; i < n; ++i) {
        pass_.seq_ids[i] = &pass_.seq_id[i];
    }
    llama_batch batch = {};
    batch.n_tokens    = static_cast<int32_t>(n);
    batch.token       = pass_.tokens.data();
    batch.embd        = pass_.embd.data();
    batch.pos         = pass_.pos.data();
    batch.n_seq_id    = pass_.n_seq_id.data();
    batch.seq_id      = pass_.seq_ids.data();
    batch.logits      = pass_.is_out.data();

    time_scope t(t_graph_us_);
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
            format("no room for %zu rows in the draft's context of %u cells", n, llama_n_ctx(ctx_.get())));
    }
    if (ret != 0) {
        throw error(format("the draft's llama_decode failed with %d", ret));
    }
}

// the cells of a sequence end where its valid slots do
void mtp_drafter::trim(llama_seq_id seq_id) {
    const llama_memory_t mem = llama_get_memory(ctx_.get());
    const int32_t        end = sequences_[seq_id].n_slots();
    if (llama_memory_seq_pos_max(mem, seq_id) >= end) {
        llama_memory_seq_rm(mem, seq_id, end, -1);
    }
}

// rows of the target

// write all waiting rows but the last, whose next token is not known yet
void mtp_drafter::flush(llama_seq_id seq_id) {
    guesses_.flush(sequences_[seq_id], n_batch_, n_out_max_,
                   [&](int32_t n_rows, bool guess) { write(seq_id, n_rows, guess); });
}

// the first waiting rows; guess: with logits
void mtp_drafter::write(llama_seq_id seq_id, int32_t n_rows, bool guess) {
    draft_sequence & seq = sequences_[seq_id];
    trim(seq_id);
    pass_.clear();
    for (int32_t i = 0; i < n_rows; ++i) {
        add_row(seq_id, seq.tokens()[i + 1], seq.pos_first() + i, seq.rows() + static_cast<size_t>(i) * n_embd_, guess);
    }
    compute();
    // Row i has token i + 1 with it, so what it says is about token i + 2. Rows of an image have the same token each
    for (int32_t i = 0; guess && i < std::min(n_rows, seq.n_rows() - 2); ++i) {
        const llama_token token = seq.tokens()[i + 2];
        const auto        found = best_of_row(llama_get_logits_ith(ctx_.get(), i), n_vocab(), 1);
        if (!found.empty() && token != seq.tokens()[i + 1]) {
            guesses_.add({ seq_id, found.front().p, found.front().id == token });
        }
    }
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
    sequences_.append(rows, tokens, n_tokens, seq_id, row_ids, may_wait, n_batch_,
                      [this](llama_seq_id id) { flush(id); });
}

void mtp_drafter::add_image(int32_t first, int32_t n_pos, const std::vector<int32_t> & pos, llama_seq_id seq_id) {
    (void) n_pos;
    (void) pos;
    sequences_.check_add_image(first, seq_id);
}

// rounds

// start a round for those of the sequences that have something to draft from
void mtp_drafter::enter(const std::vector<llama_seq_id> & seq_ids, const std::vector<llama_token> & ids_last) {
    sequences_.check_begin(seq_ids, ids_last);
    leave();
    for (size_t i = 0; i < seq_ids.size(); ++i) {
        const draft_sequence & seq = sequences_[seq_ids[i]];
        if (seq.n_rows() > 0) {
            round_.push_back({ seq_ids[i], ids_last[i], seq.n_past() - 1 });
        }
    }
}

// what was drafted is forgotten
void mtp_drafter::leave() {
    const llama_memory_t mem = llama_get_memory(ctx_.get());
    for (const participant & part : round_) {
        trim(part.seq_id);
    }
    for (const node_place & place : places_) {
        if (place.id >= n_seq_max() && llama_memory_seq_pos_max(mem, place.id) >= 0) {
            llama_memory_seq_rm(mem, place.id, -1, -1);
            ids_free_.push_back(place.id);
        }
    }
    round_.clear();
    nodes_.clear();
    places_.clear();
    rows_out_.clear();
}

int32_t mtp_drafter::pos_of(llama_seq_id seq_id) const {
    return std::find_if(round_.begin(), round_.end(),
                        [seq_id](const participant & part) { return part.seq_id == seq_id; })
        ->pos;
}

// keep the block's own row of a row of the last batch
int32_t mtp_drafter::take_row(int32_t i_batch) {
    const float * row = llama_get_embeddings_nextn_ith(ctx_.get(), i_batch);
    if (row == nullptr) {
        throw error("llama.cpp gave no row to draft on with");
    }
    rows_out_.insert(rows_out_.end(), row, row + n_embd_);
    return static_cast<int32_t>(rows_out_.size() / n_embd_) - 1;
}

// what follows a row of the last batch becomes nodes behind `parent`
void mtp_drafter::append_nodes(llama_seq_id seq_id, int32_t parent, int32_t i_batch, int32_t top_k) {
    const float * logits = llama_get_logits_ith(ctx_.get(), i_batch);
    if (logits == nullptr) {
        throw error("llama.cpp gave no logits of a drafted row");
    }
    const int32_t row   = take_row(i_batch);
    const int32_t depth = parent < 0 ? 1 : nodes_[parent].depth + 1;
    const auto &  noise = noise_[seq_id];

    std::vector<draft_candidate> found;
    for (const llama_token_data & c : best_of_row(logits, n_vocab(), noise ? std::max(top_k, n_top_noise) : top_k)) {
        found.push_back({ c.id, c.p });
    }
    if (noise) {
        order_by_noise(*noise, static_cast<uint32_t>(depth - 1), [](int32_t id) { return id; }, found, top_k);
    }
    for (const draft_candidate & c : found) {
        nodes_.push_back({ parent, c.id, c.p, depth, seq_id });
        places_.push_back({ row, -1 });
    }
    logits_last_.assign(logits, logits + n_vocab());
}

// the waiting rows of all participants, and the first level behind them
void mtp_drafter::catch_up(int32_t top_k) {
    const auto n_rows = [this] {
        int32_t n = 0;
        for (const participant & part : round_) {
            n += sequences_[part.seq_id].n_rows();
        }
        return n;
    };
    for (const participant & part : round_) {
        if (sequences_[part.seq_id].n_rows() > draft_sequences::n_catch_up_max || n_rows() > n_batch_) {
            flush(part.seq_id);
        }
    }
    for (const participant & part : round_) {
        draft_sequence & seq = sequences_[part.seq_id];
        if (seq.seeded()) { // its slot is written again
            seq.restore(seq.pos_start(), seq.pos_first(), { seq.rows(), seq.rows() + n_embd_ }, { seq.tokens()[0] },
                        std::nullopt);
        }
        trim(part.seq_id);
    }
    pass_.clear();
    std::vector<int32_t> i_out;
    for (const participant & part : round_) {
        const draft_sequence & seq = sequences_[part.seq_id];
        const int32_t          n   = seq.n_rows();
        for (int32_t i = 0; i < n; ++i) {
            const bool is_last = i + 1 == n;
            add_row(part.seq_id, is_last ? part.id_last : seq.tokens()[i + 1], seq.pos_first() + i,
                    seq.rows() + static_cast<size_t>(i) * n_embd_, is_last);
        }
        i_out.push_back(static_cast<int32_t>(pass_.tokens.size()) - 1);
    }
    compute();
    stats.n_propose++;
    stats.n_steps++;
    for (size_t j = 0; j < round_.size(); ++j) {
        sequences_[round_[j].seq_id].on_proposed(round_[j].id_last);
        append_nodes(round_[j].seq_id, -1, i_out[j], top_k);
    }
}

void mtp_drafter::begin(const std::vector<llama_seq_id> & seq_ids, const std::vector<llama_token> & ids_last,
                        int32_t top_k, int32_t n_steps) {
    time_scope t(stats.t_propose_us);
    if (top_k < 1 || n_steps != 1) {
        throw std::invalid_argument(
            format("expected top_k >= 1 and n_steps = 1 (n_unroll), found %d and %d", top_k, n_steps));
    }
    enter(seq_ids, ids_last);
    if (!round_.empty()) {
        catch_up(top_k);
    }
}

void mtp_drafter::expand(const std::vector<int32_t> & nodes, int32_t top_k) {
    time_scope t(stats.t_propose_us);
    expand_nodes(nodes, top_k);
}

void mtp_drafter::expand_nodes(const std::vector<int32_t> & nodes, int32_t top_k) {
    if (top_k < 1) {
        throw std::invalid_argument(format("expected top_k >= 1, found %d", top_k));
    }
    const auto           n_nodes = static_cast<int32_t>(nodes_.size());
    std::vector<int32_t> order;
    for (const int32_t i : nodes) {
        if (i < 0 || i >= n_nodes) {
            throw std::invalid_argument(format("node %d: this round has %d nodes", i, n_nodes));
        }
        if (places_[i].id >= 0 || std::find(order.begin(), order.end(), i) != order.end()) {
            throw std::invalid_argument(format("node %d was expanded already", i));
        }
        if (nodes_[i].depth < n_ctx() - pos_of(nodes_[i].seq_id)) {
            order.push_back(i);
        }
    }
    const llama_memory_t mem     = llama_get_memory(ctx_.get());
    const auto           has_row = [&](int32_t i) {
        const draft_node & node   = nodes_[i];
        // the id whose cells are the path before the node, and whether another child of its parent goes on with it
        const llama_seq_id path   = node.parent < 0 ? node.seq_id : places_[node.parent].id;
        bool               is_led = false;
        for (int32_t k = 0; k < n_nodes && !is_led; ++k) {
            is_led = nodes_[k].parent == node.parent && nodes_[k].seq_id == node.seq_id && places_[k].id == path;
        }
        if (!is_led) {
            places_[i].id = path;
        } else if (!ids_free_.empty()) {
            places_[i].id = ids_free_.back();
            ids_free_.pop_back();
            llama_memory_seq_cp(mem, path, places_[i].id, 0, pos_of(node.seq_id) + node.depth);
        }
        return places_[i].id >= 0;
    };
    order.erase(std::remove_if(order.begin(), order.end(), [&](int32_t i) { return !has_row(i); }), order.end());
    for (size_t first = 0; first < order.size(); first += n_out_max_) {
        const size_t n = std::min(order.size() - first, static_cast<size_t>(n_out_max_));
        pass_.clear();
        for (size_t k = first; k < first + n; ++k) {
            const draft_node & node = nodes_[order[k]];
            add_row(places_[order[k]].id, node.token, pos_of(node.seq_id) + node.depth,
                    rows_out_.data() + static_cast<size_t>(places_[order[k]].row) * n_embd_, true);
        }
        compute();
        stats.n_steps++;
        for (size_t k = 0; k < n; ++k) {
            append_nodes(nodes_[order[first + k]].seq_id, order[first + k], static_cast<int32_t>(k), top_k);
        }
    }
}

std::vector<std::vector<llama_token>> mtp_drafter::propose_batch(const std::vector<llama_seq_id> & seq_ids,
                                                                 const std::vector<llama_token> &  ids_last,
                                                                 const std::vector<int32_t> & n_max, float p_min) {
    time_scope t(stats.t_propose_us);
    if (n_max.size() != seq_ids.size()) {
        throw std::invalid_argument(
            format("expected one n_max per sequence, found %zu for %zu", n_max.size(), seq_ids.size()));
    }
    enter(seq_ids, ids_last);
    std::vector<std::vector<llama_token>> result(seq_ids.size());
    const auto                            call_of = [&](llama_seq_id seq_id) {
        return static_cast<size_t>(std::find(seq_ids.begin(), seq_ids.end(), seq_id) - seq_ids.begin());
    };
    round_.erase(std::remove_if(round_.begin(), round_.end(),
                                [&](const participant & part) { return n_max[call_of(part.seq_id)] <= 0; }),
                 round_.end());
    if (round_.empty()) {
        return result;
    }
    const int32_t top_k = p_min > 0.0f ? n_top_llama : 1;
    catch_up(top_k);
    for (size_t first = 0; first < nodes_.size();) {
        std::vector<int32_t> next;
        const size_t         end = nodes_.size();
        for (size_t i = first; i < end;) {
            // the nodes of one sequence in this level, the best one first
            size_t n   = 0;
            float  sum = 0.0f;
            while (i + n < end && nodes_[i + n].seq_id == nodes_[i].seq_id) {
                sum += nodes_[i + n++].p;
            }
            const size_t call = call_of(nodes_[i].seq_id);
            if (!(nodes_[i].p / sum < p_min)) {
                result[call].push_back(nodes_[i].token);
                if (static_cast<int32_t>(result[call].size()) < n_max[call]) {
                    next.push_back(static_cast<int32_t>(i));
                }
            }
            i += n;
        }
        first = end;
        expand_nodes(next, top_k);
    }
    return result;
}

} // namespace eagle3
