#include "drafters/llama_context/context_drafter.h"

#include "drafter/time_scope.h"
#include "drafters/llama_context/best_of_row.h"
#include "error.h"

#include <algorithm>
#include <utility>

namespace eagle3 {

context_drafter::context_drafter(llama_context * ctx, llama_model * model, const std::string & path, int32_t n_embd,
                                 int32_t n_outputs_max, memory_kind memory) :
    ctx_(ctx, model), path_(path), n_embd_(n_embd),
    n_vocab_dft_(llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx)))),
    n_batch_(static_cast<int32_t>(std::min(llama_n_batch(ctx), llama_n_ctx(ctx)))),
    n_out_max_(std::min(n_outputs_max, n_batch_)), memory_(memory) {}

draft_limits context_drafter::checked_limits(const llama_context * ctx, int32_t n_vocab, int32_t n_ctx,
                                             int32_t n_seq_max) {
    const auto n_ids = static_cast<int32_t>(llama_n_seq_max(ctx));
    const auto n_pos = static_cast<int32_t>(llama_n_ctx_seq(ctx));
    if (n_seq_max < 1 || n_seq_max > n_ids || n_ctx < 1 || n_ctx > n_pos) {
        throw std::invalid_argument(
            format("expected n_seq_max in 1..%d and n_ctx in 1..%d, found %d and %d", n_ids, n_pos, n_seq_max, n_ctx));
    }
    return { n_vocab, n_ctx, n_seq_max };
}

void context_drafter::check_outputs(int32_t n_outputs_max) const {
    const auto n_ids = static_cast<int32_t>(llama_n_seq_max(ctx()));
    if (n_batch_ < n_seq_max() || n_outputs_max < n_ids) {
        throw std::invalid_argument(
            format("expected n_batch >= %d and n_outputs_max >= %d, the numbers of sequences, found %d and %d",
                   n_seq_max(), n_ids, n_batch_, n_outputs_max));
    }
}

void context_drafter::set_noise(std::shared_ptr<const gumbel_noise> noise, llama_seq_id seq_id) {
    limits().check(seq_id);
    foresight_[seq_id].noise = std::move(noise);
}

void context_drafter::set_rules(std::shared_ptr<grammar_lookahead> rules, llama_seq_id seq_id) {
    limits().check(seq_id);
    foresight_[seq_id].rules = std::move(rules);
}

// tokens that are drafted

bool context_drafter::limit_vocab(int64_t n_first) {
    leave();
    vocabulary_.reset();
    const llama_vocab * vocab = llama_model_get_vocab(llama_get_model(ctx()));
    if (n_first < 1 || n_first >= n_vocab_dft_ || !draft_vocabulary::is_ordered(vocab) || !find_output_matrices()) {
        return n_first == 0;
    }
    vocabulary_ = std::make_unique<draft_vocabulary>(vocab, n_vocab_dft_, n_first, n_seq_max());
    return true;
}

void context_drafter::draft_always(const std::vector<llama_token> & tokens) {
    if (vocabulary_) {
        vocabulary_->draft_always(tokens);
    }
}

void context_drafter::read_text(llama_seq_id seq_id, const llama_token * tokens, int32_t n_tokens) {
    if (vocabulary_) {
        vocabulary_->read(seq_id, tokens, n_tokens);
    }
}

void context_drafter::restart_text(llama_seq_id seq_id) {
    if (vocabulary_) {
        vocabulary_->restart(seq_id);
    }
}

// batches

void context_drafter::add_row(llama_seq_id id, llama_token token, int32_t pos, const float * row, bool is_out) {
    batch_.add(id, pos, is_out);
    batch_.tokens.push_back(token);
    batch_.embd.insert(batch_.embd.end(), row, row + n_embd_);
}

void context_drafter::compute_in(draft_context & ctx) {
    try {
        ctx.decode(batch_.get(), t_graph_us_, ranges_);
    } catch (...) {
        for (const llama_seq_id id : batch_.seq_ids) {
            if (id < n_seq_max()) {
                on_failed(id);
            }
        }
        throw;
    }
}

void context_drafter::mute_batch() {
    std::fill(batch_.is_out.begin(), batch_.is_out.end(), 0);
}

void context_drafter::write_waiting(int32_t n_rows, const std::function<void(int32_t)> & write) {
    for (int32_t n_left = n_rows; n_left > 0; n_left -= std::min(n_left, n_batch_)) {
        write(std::min(n_left, n_batch_));
    }
}

// drafting

// Starts a draft for those of the sequences that can begin one.
void context_drafter::enter(const std::vector<llama_seq_id> & seq_ids, const std::vector<llama_token> & ids_last) {
    limits().check_begin(seq_ids, ids_last);
    leave();
    for (size_t i = 0; i < seq_ids.size(); ++i) {
        if (can_begin(seq_ids[i])) {
            participants_.push_back({ seq_ids[i], ids_last[i], pos_begin(seq_ids[i]) });
        }
    }
    ranges_ = vocabulary_ ? vocabulary_->ranges(seq_ids) : nullptr;
}

void context_drafter::leave() {
    for (const participant & part : participants_) {
        trim(part.seq_id);
    }
    for (const llama_seq_id id : ids_used_) {
        ctx_.clear(id);
    }
    ids_used_.clear();
    participants_.clear();
    ranges_ = nullptr;
    nodes_.clear();
    places_.clear();
    on_leave();
}

int32_t context_drafter::pos_of(llama_seq_id seq_id) const {
    return std::find_if(participants_.begin(), participants_.end(),
                        [seq_id](const participant & part) { return part.seq_id == seq_id; })
        ->pos;
}

int32_t context_drafter::pos_of(const draft_node & node) const {
    return pos_of(node.seq_id) + (memory_ == memory_kind::none ? 0 : node.depth);
}

// False if llama.cpp has no cells left: it wants some of the target's even for rows that write none. Nothing is drafted
// then.
bool context_drafter::compute_round() {
    try {
        compute();
    } catch (const context_full_error &) {
        if (memory_ != memory_kind::none) {
            throw;
        }
        return false;
    }
    return true;
}

// Appends the best tokens of a row of the last batch as nodes after `parent`.
void context_drafter::append_nodes(llama_seq_id seq_id, int32_t parent, const draft_context & ctx, int32_t i_batch,
                                   int32_t top_k) {
    const float * logits = ctx.logits(i_batch);
    const int32_t kept   = keep_row(ctx, i_batch);
    const auto &  known  = foresight_[seq_id];
    auto          found  = best_of_row(logits, n_logits(), known.n_top(top_k));
    known.order(
        nodes_.path(parent),
        [this](int32_t id) { return std::binary_search(left_out_.begin(), left_out_.end(), id) ? -1 : id; }, found,
        top_k);
    nodes_.append(seq_id, parent, found);
    places_.resize(static_cast<size_t>(nodes_.n()), { kept, -1 });
    logits_last_.assign(logits, logits + n_logits());
}

// Evaluates what waits of all participants, and appends the first level.
void context_drafter::catch_up(int32_t top_k) {
    const auto n_rows = [this] {
        int32_t n = 0;
        for (const participant & part : participants_) {
            n += n_waiting(part.seq_id);
        }
        return n;
    };
    for (const participant & part : participants_) {
        prepare(part.seq_id);
        if (n_waiting(part.seq_id) > draft_limits::n_catch_up_max || n_rows() > n_batch_) {
            flush(part.seq_id);
        }
    }
    clear_batch();
    std::vector<int32_t> i_out;
    for (const participant & part : participants_) {
        add_waiting(part.seq_id, part.id_last);
        i_out.push_back(batch_.n_rows() - 1);
    }
    if (!compute_round()) {
        return;
    }
    stats.n_propose++;
    stats.n_steps++;
    for (size_t j = 0; j < participants_.size(); ++j) {
        on_caught_up(participants_[j].seq_id, participants_[j].id_last);
        append_nodes(participants_[j].seq_id, -1, ctx_, i_out[j], top_k);
    }
}

void context_drafter::begin(const std::vector<llama_seq_id> & seq_ids, const std::vector<llama_token> & ids_last,
                            int32_t top_k, int32_t n_steps) {
    time_scope t(stats.t_propose_us);
    draft_nodes::check_begin(top_k, n_steps, n_unroll());
    enter(seq_ids, ids_last);
    if (!participants_.empty()) {
        catch_up(top_k);
    }
}

llama_seq_id context_drafter::find_id(int32_t i) {
    const draft_node & node = nodes_[i];
    if (memory_ == memory_kind::none) {
        return node.seq_id;
    }
    const llama_seq_id path    = node.parent < 0 ? node.seq_id : places_[node.parent].id;
    const bool         is_copy = has_states() && node.parent < 0;
    bool               is_led  = false; // another child has taken over the parent's id
    for (int32_t k = 0; k < nodes_.n() && !is_led; ++k) {
        is_led = nodes_[k].parent == node.parent && nodes_[k].seq_id == node.seq_id && places_[k].id >= 0 &&
                 (is_copy || places_[k].id == path);
    }
    if (!is_led && !is_copy) {
        return path;
    }
    llama_seq_id free = n_seq_max();
    while (std::find(ids_used_.begin(), ids_used_.end(), free) != ids_used_.end()) {
        ++free;
    }
    if (free >= static_cast<llama_seq_id>(llama_n_seq_max(ctx())) || !ctx_.shares_cells() || (is_led && has_states())) {
        return -1;
    }
    ids_used_.push_back(free);
    llama_memory_seq_cp(ctx_.memory(), path, free, 0, pos_of(node.seq_id) + node.depth);
    return free;
}

context_drafter::computed_nodes context_drafter::compute_nodes(std::vector<int32_t> & nodes) {
    computed_nodes done = { &ctx_, {}, {} };
    const auto end = nodes.begin() + std::min<std::ptrdiff_t>(static_cast<std::ptrdiff_t>(nodes.size()), n_out_max_);
    done.nodes.assign(nodes.begin(), end);
    nodes.erase(nodes.begin(), end);
    clear_batch();
    for (const int32_t i : done.nodes) {
        done.i_batch.push_back(batch_.n_rows());
        add_node(places_[i].id, nodes_[i].token, pos_of(nodes_[i]), places_[i].kept);
    }
    return compute_round() ? done : computed_nodes();
}

void context_drafter::expand(const std::vector<int32_t> & nodes, int32_t top_k) {
    time_scope t(stats.t_propose_us);
    nodes_.mark_expanded(nodes, top_k);
    std::vector<int32_t> order;
    for (const int32_t i : nodes) {
        if (nodes_[i].depth < n_pos_max() - pos_of(nodes_[i].seq_id)) {
            order.push_back(i);
        }
    }
    const auto has_no_place = [this](int32_t i) {
        places_[i].id = find_id(i);
        return places_[i].id < 0;
    };
    order.erase(std::remove_if(order.begin(), order.end(), has_no_place), order.end());
    while (!order.empty()) {
        const computed_nodes done = compute_nodes(order);
        if (done.nodes.empty()) {
            return;
        }
        stats.n_steps++;
        for (size_t k = 0; k < done.nodes.size(); ++k) {
            append_nodes(nodes_[done.nodes[k]].seq_id, done.nodes[k], *done.ctx, done.i_batch[k], top_k);
        }
    }
}

} // namespace eagle3
