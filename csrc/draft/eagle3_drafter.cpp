#include "draft/eagle3_drafter.h"

#include "draft/foresight.h"
#include "draft/time_scope.h"
#include "error.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace eagle3 {

namespace {

head_hparams with_boundaries(head_hparams hparams, const std::vector<int32_t> & boundaries) {
    if (boundaries.empty()) {
        return hparams;
    }
    if (!hparams.use_aux_hidden_state) {
        throw incompatible_draft_error(format(
            "'%s': the head reads the target's final state only, boundaries cannot be chosen", hparams.path.c_str()));
    }
    if (boundaries.size() != hparams.boundaries.size()) {
        throw incompatible_draft_error(format("'%s': the head reads %zu boundaries, %zu were given",
                                              hparams.path.c_str(), hparams.boundaries.size(), boundaries.size()));
    }
    hparams.boundaries = boundaries;
    return hparams;
}

// steps of a chain in one graph: launching graphs costs on an accelerator, and early stops pay on the CPU
int32_t n_unroll_of(int32_t n_unroll, const head_hparams & hparams, const device & dev) {
    if (hparams.is_parallel()) {
        return draft_cache::n_scratch;
    }
    if (n_unroll < 0) {
        n_unroll = ggml_backend_dev_type(dev.dev()) == GGML_BACKEND_DEVICE_TYPE_CPU ? 1 : draft_cache::n_scratch;
    }
    return std::min(n_unroll, draft_cache::n_scratch);
}

} // namespace

eagle3_drafter::eagle3_drafter(const std::string & path, const llama_model * model_tgt, int32_t n_ctx,
                               const eagle3_params & params) :
    hparams_(with_boundaries(read_head(gguf_file(path)), params.boundaries)), tables_(model_tgt),
    dev_(params.dev, params.n_gpu_layers, tables_.output, params.n_threads),
    weights_(gguf_file(path), hparams_, tables_, dev_, params.type, params.n_threads),
    cache_(hparams_, n_ctx, params.n_seq_max, params.type_k, params.type_v, dev_), positions_(params.n_seq_max),
    noise_(params.n_seq_max),
    runner_(hparams_, weights_, cache_, dev_, positions_, params.n_seq_max * (1 + draft_cache::n_scratch)),
    boundaries_(hparams_.use_aux_hidden_state ? hparams_.boundaries : std::vector<int32_t>{ tables_.n_layer + 1 }),
    n_batch_(std::max(params.n_batch, n_catch_up_max)), n_unroll_(n_unroll_of(params.n_unroll, hparams_, dev_)),
    sequences_(params.n_seq_max, draft_sequence(hparams_.n_embd_feat())) {
    if (n_unroll_ > 1 && !is_parallel()) {
        weights_.load_embd_dft(dev_);
    }
    // build the graphs of a round once, so that a device that cannot run the head says so now
    draft_shape shape;
    shape.n_rows = 1;
    shape.kind   = graph_kind::kv_only;
    if (hparams_.n_layer > 1) {
        shape.streams = { { 0, draft_cache::n_pad, 1, 1 } };
    }
    runner_.check(shape);
    shape.n_out   = 1;
    shape.n_top   = 1;
    shape.streams = { { 0, draft_cache::n_pad, 1, 1 } };
    if (is_parallel()) {
        shape.kind   = graph_kind::catch_up;
        shape.n_rows = shape.n_out = shape.n_steps = 2;
        shape.streams                              = { { 0, draft_cache::n_pad, 2, 2 } };
        runner_.check(shape);
        return;
    }
    shape.n_steps = std::min(n_unroll_, 2);
    for (const graph_kind kind : { graph_kind::catch_up, graph_kind::step, graph_kind::expand }) {
        shape.kind = kind;
        runner_.check(shape);
    }
}

const draft_sequence & eagle3_drafter::sequence(llama_seq_id seq_id) const {
    if (seq_id < 0 || seq_id >= n_seq_max()) {
        throw std::invalid_argument(format("sequence %d: the draft was made for %d sequences, expected 0..%d", seq_id,
                                           n_seq_max(), n_seq_max() - 1));
    }
    return sequences_[seq_id];
}

draft_sequence & eagle3_drafter::sequence(llama_seq_id seq_id) {
    return const_cast<draft_sequence &>(static_cast<const eagle3_drafter *>(this)->sequence(seq_id));
}

void eagle3_drafter::check_token(const char * what, llama_token token) const {
    if (token < 0 || token >= tables_.n_vocab) {
        throw std::invalid_argument(format("%s %d: expected an id in 0..%d", what, token, tables_.n_vocab - 1));
    }
}

// a row of the next graph that sees all of its sequence before it
draft_pass::row & eagle3_drafter::add_row(llama_seq_id seq_id, llama_token token, int32_t pos) {
    draft_pass::row row;
    row.seq_id = seq_id;
    row.token  = token;
    row.pos = row.slot = pos;
    row.first          = sequence(seq_id).pos_start();
    row.end            = pos + 1;
    pass_.rows.push_back(row);
    return pass_.rows.back();
}

// write all waiting rows but the last, whose next token is not known yet
void eagle3_drafter::flush(llama_seq_id seq_id) {
    const draft_sequence & seq = sequence(seq_id);
    while (seq.n_rows() > 1) {
        const int32_t n       = std::min(seq.n_rows() - 1, n_batch_);
        const bool    guesses = guesses_wanted_ && guesses_.size() < n_guesses_max;
        const int32_t n_guess = guesses ? std::min(n, n_guess_max) : 0;
        const int32_t n_first = (n - n_guess) / 2; // a chat ends with what its template says, which nobody drafts
        write(seq_id, n_first, false);
        write(seq_id, n_guess, true);
        write(seq_id, n - n_first - n_guess, false);
    }
}

// the first waiting rows; guess: go all the way with them
void eagle3_drafter::write(llama_seq_id seq_id, int32_t n_rows, bool guess) {
    if (n_rows == 0) {
        return;
    }
    draft_sequence & seq = sequence(seq_id);
    pass_.clear(guess ? graph_kind::catch_up : graph_kind::kv_only, guess ? 1 : 0);
    pass_.features.push_back({ seq.rows(), n_rows });
    for (int32_t i = 0; i < n_rows; ++i) {
        add_row(seq_id, seq.tokens()[i + 1], seq.pos_first() + i).is_out = guess;
    }
    runner_.compute(pass_);
    if (guess) {
        n_steps_last_ = 1;
        state_last_   = n_rows - 1;
        add_guesses(seq_id, n_rows);
    }
    seq.on_written(n_rows);
}

// Row i has token i + 1 with it, so what it says is about token i + 2. Left out is what the head cannot know: rows of
// an image, which have the same token each, and tokens outside its vocabulary, such as those of a chat's template.
void eagle3_drafter::add_guesses(llama_seq_id seq_id, int32_t n_rows) {
    const draft_sequence & seq = sequence(seq_id);
    for (int32_t i = 0; i < std::min(n_rows, seq.n_rows() - 2); ++i) {
        const llama_token token = seq.tokens()[i + 2];
        const auto &      found = runner_.candidates(i, 0);
        if (!found.empty() && token != seq.tokens()[i + 1] && weights_.can_draft(token)) {
            guesses_.push_back({ seq_id, found.front().p, weights_.to_target(found.front().id) == token });
        }
    }
}

std::vector<draft_guess> eagle3_drafter::take_guesses() {
    guesses_wanted_ = guesses_wanted_ && guesses_.empty();
    return std::exchange(guesses_, {});
}

void eagle3_drafter::process(const float * rows, const llama_token * tokens, int32_t n_tokens, int32_t n_past,
                             llama_seq_id seq_id, const int32_t * row_ids, bool may_wait) {
    time_scope       t(stats.t_process_us);
    draft_sequence & seq = sequence(seq_id);
    if (n_tokens <= 0) {
        return;
    }
    if (n_past != seq.n_past()) {
        throw error(format("the draft expects rows from position %d on, got position %d", seq.n_past(), n_past));
    }
    if (n_tokens > n_ctx() - n_past) {
        throw context_full_error(
            format("the draft's context has %d slots, position %d does not fit", n_ctx(), n_past + n_tokens - 1));
    }
    for (int32_t i = 0; i < n_tokens; ++i) {
        check_token("token", tokens[i]);
    }
    leave();
    cache_.request(seq_id, n_past + n_tokens + draft_cache::n_scratch);
    cache_.provide();
    const size_t n_feat = hparams_.n_embd_feat();
    const auto   n_wait = static_cast<int32_t>(n_wait_bytes / (n_feat * sizeof(float)));
    for (int32_t i = 0; i < n_tokens; ++i) {
        seq.append(rows + n_feat * (row_ids ? row_ids[i] : i), tokens[i]);
        if (seq.n_rows() > n_batch_) {
            flush(seq_id);
        }
    }
    // a prompt is written at once; what comes in small pieces waits, and is cheaper together
    if ((n_tokens > n_catch_up_max && !may_wait) || seq.n_rows() > std::max(n_wait_max, may_wait ? n_wait : 0)) {
        flush(seq_id);
    }
}

// start a round for those of the sequences that have something to draft from
void eagle3_drafter::enter(const std::vector<llama_seq_id> & seq_ids, const std::vector<llama_token> & ids_last) {
    if (seq_ids.size() != ids_last.size()) {
        throw std::invalid_argument(
            format("expected one id_last per sequence, found %zu for %zu", ids_last.size(), seq_ids.size()));
    }
    for (size_t i = 0; i < seq_ids.size(); ++i) {
        sequence(seq_ids[i]);
        check_token("id_last", ids_last[i]);
    }
    order_.resize(seq_ids.size());
    std::iota(order_.begin(), order_.end(), 0);
    std::sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) { return seq_ids[a] < seq_ids[b]; });
    for (size_t i = 1; i < order_.size(); ++i) {
        if (seq_ids[order_[i]] == seq_ids[order_[i - 1]]) {
            throw std::invalid_argument(format("sequence %d is named twice", seq_ids[order_[i]]));
        }
    }
    leave();
    for (const int32_t i : order_) {
        const draft_sequence & seq = sequence(seq_ids[i]);
        if (seq.n_rows() > 0) {
            participant part;
            part.seq_id  = seq_ids[i];
            part.i_call  = i;
            part.id_last = ids_last[i];
            part.pos     = seq.n_past() - 1;
            round_.push_back(part);
        }
    }
}

void eagle3_drafter::leave() {
    round_.clear();
    nodes_.clear();
    places_.clear();
}

void eagle3_drafter::compute() {
    runner_.compute(pass_);
    stats.n_steps += is_parallel() ? 1 : pass_.n_steps;
    n_steps_last_ = pass_.n_steps;
}

// The waiting rows of all participants: step i of participant j leaves its recurrent row in row i * n + j of the state.
// Of a parallel head with the rows of all steps behind them.
void eagle3_drafter::catch_up(int32_t n_top, int32_t n_steps) {
    for (const participant & part : round_) {
        cache_.request(part.seq_id, part.pos + 1 + part.n_left + draft_cache::n_scratch);
    }
    cache_.provide();
    for (const participant & part : round_) {
        if (sequence(part.seq_id).n_rows() > n_catch_up_max) {
            flush(part.seq_id);
        }
    }
    std::sort(round_.begin(), round_.end(), [this](const participant & a, const participant & b) {
        return cache_.row(a.seq_id, 0) < cache_.row(b.seq_id, 0);
    });
    const int32_t n_masked = is_parallel() ? n_steps - 1 : 0; // of each
    int32_t       n_feat   = 0;
    for (const participant & part : round_) {
        n_feat += sequence(part.seq_id).n_rows();
    }
    const int32_t mask_row = n_feat;
    n_feat                 = 0;
    pass_.clear(graph_kind::catch_up, n_top, n_steps);
    for (const participant & part : round_) {
        const draft_sequence & seq = sequence(part.seq_id);
        const int32_t          n   = seq.n_rows();
        pass_.features.push_back({ seq.rows(), n });
        for (int32_t i = 0; i < n; ++i) {
            const llama_token next = i + 1 < n ? seq.tokens()[i + 1] : part.id_last;
            draft_pass::row & row  = add_row(part.seq_id, next, seq.pos_first() + i);
            row.is_out             = i + 1 == n;
            row.state_in           = n_feat++;
        }
        for (int32_t i = 1; i <= n_masked; ++i) {
            add_row(part.seq_id, hparams_.mask_token, part.pos + i).state_in = mask_row;
        }
    }
    if (n_masked > 0) {
        pass_.features.push_back({ weights_.mask_hidden.data(), 1 });
    }
    compute();
    stats.n_propose++;
    state_last_ = is_parallel() ? n_steps - 1 : static_cast<int32_t>(round_.size()) * (n_steps - 1);
    for (const participant & part : round_) {
        sequence(part.seq_id).on_proposed(part.id_last);
    }
}

// the next tokens of all chains; their recurrent rows are moved as catch_up leaves them
void eagle3_drafter::step(int32_t n_top, int32_t n_steps) {
    const int32_t n        = static_cast<int32_t>(round_.size());
    bool          in_place = n_steps == 1;
    for (int32_t j = 0; j < n; ++j) {
        in_place &= round_[j].state_row == j;
    }
    pass_.clear(in_place ? graph_kind::step : graph_kind::expand, n_top, n_steps);
    for (int32_t j = 0; j < n; ++j) {
        const participant & part = round_[j];
        draft_pass::row &   row  = add_row(part.seq_id, part.token, part.pos + part.n_used);
        row.state_in             = part.state_row;
        row.state_out            = j;
    }
    compute();
    state_last_ = n * (n_steps - 1);
}

void eagle3_drafter::set_noise(std::shared_ptr<const gumbel_noise> noise, llama_seq_id seq_id) {
    sequence(seq_id);
    noise_[seq_id] = std::move(noise);
}

// of a participant
bool eagle3_drafter::has_noise() const {
    return std::any_of(round_.begin(), round_.end(),
                       [this](const participant & part) { return noise_[part.seq_id] != nullptr; });
}

// candidates that a graph has to give for n of them
int32_t eagle3_drafter::n_top(int32_t n) const {
    return std::min(has_noise() ? std::max(n, n_top_noise) : n, weights_.n_vocab_dft);
}

// The n_top best tokens of an output of the last graph, n_ahead drafted tokens before them.
std::vector<draft_candidate> eagle3_drafter::candidates(const participant & part, int32_t i_out, int32_t i_step,
                                                        int32_t n_ahead, int32_t n_top) {
    std::vector<draft_candidate> found = runner_.candidates(i_out, i_step);
    if (const auto & noise = noise_[part.seq_id]) {
        order_by_noise(
            *noise, static_cast<uint32_t>(n_ahead), [this](int32_t id) { return weights_.to_target(id); }, found,
            n_top);
    } else {
        found.resize(std::min(found.size(), static_cast<size_t>(n_top)));
    }
    return found;
}

// a token that the last graph drafted, or -1 if its probability is below p_min
llama_token eagle3_drafter::drafted(const participant & part, int32_t i_out, int32_t i_step, float p_min) {
    if (noise_[part.seq_id]) {
        const auto found = candidates(part, i_out, i_step, part.n_used, 1);
        return found.empty() || found.front().p < p_min ? -1 : weights_.to_target(found.front().id);
    }
    const int32_t id = runner_.best(i_out, i_step);
    if (id >= 0 && p_min > 0.0f) {
        float      sum   = 0.0f;
        const auto found = candidates(part, i_out, i_step, part.n_used, n_top_llama);
        for (const draft_candidate & c : found) {
            sum += c.p;
        }
        if (!(sum > 0.0f) || found.front().p / sum < p_min) {
            return -1;
        }
    }
    return id < 0 ? -1 : weights_.to_target(id);
}

std::vector<std::vector<llama_token>> eagle3_drafter::propose_batch(const std::vector<llama_seq_id> & seq_ids,
                                                                    const std::vector<llama_token> &  ids_last,
                                                                    const std::vector<int32_t> & n_max, float p_min) {
    time_scope t(stats.t_propose_us);
    if (n_max.size() != seq_ids.size()) {
        throw std::invalid_argument(
            format("expected one n_max per sequence, found %zu for %zu", n_max.size(), seq_ids.size()));
    }
    enter(seq_ids, ids_last);

    std::vector<std::vector<llama_token>> result(seq_ids.size());

    const auto end_chains = [this] {
        round_.erase(
            std::remove_if(round_.begin(), round_.end(), [](const participant & part) { return part.n_left <= 0; }),
            round_.end());
        return round_.empty();
    };
    for (participant & part : round_) {
        part.n_left = std::min(n_max[part.i_call], n_ctx() - part.pos);
    }
    if (end_chains()) {
        return result;
    }

    const int32_t n_top    = this->n_top(p_min > 0.0f ? n_top_llama : 0);
    const auto    n_unroll = [this] {
        int32_t n_left = 0;
        for (const participant & part : round_) {
            n_left = std::max(n_left, part.n_left);
        }
        // a graph knows no noise; that of a parallel head does not choose
        return std::min(n_left, has_noise() && !is_parallel() ? 1 : n_unroll_);
    };
    int32_t n_steps = n_unroll();
    catch_up(n_top, n_steps);
    while (true) {
        const int32_t n = static_cast<int32_t>(round_.size());
        for (int32_t j = 0; j < n; ++j) {
            participant & part = round_[j];
            for (int32_t i = 0; i < n_steps && part.n_left > 0; ++i) {
                part.token = drafted(part, j, i, p_min);
                if (part.token < 0) {
                    part.n_left = 0;
                    break;
                }
                result[part.i_call].push_back(part.token);
                part.n_left--;
                part.n_used++;
            }
            part.state_row = n * (n_steps - 1) + j;
        }
        if (end_chains() || is_parallel()) {
            return result;
        }
        n_steps = n_unroll();
        step(n_top, n_steps);
    }
}

int32_t eagle3_drafter::truncate(int32_t n_past, llama_seq_id seq_id, bool same_next) {
    draft_sequence & seq = sequence(seq_id);
    leave();
    n_past = seq.truncate(n_past, same_next);
    positions_[seq_id].cut(n_past);
    if (seq.n_slots() == seq.pos_start()) {
        cache_.release(seq_id);
    }
    return n_past;
}

int32_t eagle3_drafter::copy(llama_seq_id src, llama_seq_id dst, int32_t n_past, bool same_next) {
    const draft_sequence & from = sequence(src);
    draft_sequence &       to   = sequence(dst);
    if (src == dst) {
        throw std::invalid_argument(format("sequence %d cannot be copied to itself", src));
    }
    if (n_past < 0 || n_past > from.n_past()) {
        throw std::invalid_argument(
            format("expected a position of sequence %d, in 0..%d, found %d", src, from.n_past(), n_past));
    }
    leave();
    restart(0, dst);
    draft_sequence prefix = from.prefix(n_past, same_next);
    const int32_t  n      = prefix.n_slots() - prefix.pos_start();
    if (n > 0) {
        cache_.request(dst, prefix.n_slots() + draft_cache::n_scratch);
        cache_.provide();
        cache_.copy(src, dst, prefix.pos_start(), n);
    }
    to              = std::move(prefix);
    positions_[dst] = positions_[src];
    positions_[dst].cut(to.n_past());
    return to.n_past();
}

void eagle3_drafter::restart(int32_t n_past, llama_seq_id seq_id) {
    draft_sequence & seq = sequence(seq_id);
    if (n_past < 0 || n_past > n_ctx()) {
        throw std::invalid_argument(format("expected a position in 0..%d, found %d", n_ctx(), n_past));
    }
    leave();
    seq.restart(n_past);
    positions_[seq_id].cut(0);
    cache_.release(seq_id);
}

void eagle3_drafter::add_image(int32_t first, int32_t n_pos, const std::vector<int32_t> & pos, llama_seq_id seq_id) {
    if (first != sequence(seq_id).n_past()) {
        throw error(
            format("the draft expects rows from position %d on, got an image at %d", sequence(seq_id).n_past(), first));
    }
    if (pos.empty() || pos.size() % rope_positions::n_sections != 0) {
        throw std::invalid_argument(format("expected %d positions for each row of an image, found %zu in all",
                                           rope_positions::n_sections, pos.size()));
    }
    positions_[seq_id].add(first, n_pos, pos);
}

} // namespace eagle3
