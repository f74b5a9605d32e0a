#include "planner/planner.h"

#include "error.h"

#include <algorithm>
#include <chrono>

namespace eagle3 {

namespace {

constexpr float rate_price   = 1.0f / 48.0f; // per step
constexpr float rate_other   = 1.0f / 16.0f;
constexpr float q_surprise   = 0.5f; // an accepted token that was believed less than this is news
constexpr float share_unseen = 0.9f; // of twice as many rows as were seen: tried where all that the text says is likely
constexpr float replay_share = 0.5f; // rows that are evaluated again often fill a step that the next draft pays for

// Evenly spread (Knuth, TAOCP 6.4: multiples of the golden ratio), but not periodic: who lets two kinds of requests
// take turns would have one kind probed alone.
bool is_one_in_four(uint32_t n) {
    return n * 0x9E3779B9u < 1u << 30;
}

} // namespace

double planner::now_us() {
    const auto t = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double, std::micro>(t).count();
}

planner::planner(std::unique_ptr<draft_source> source, std::shared_ptr<ngram_drafter> ngram,
                 std::shared_ptr<cost_curve> target, std::shared_ptr<cost_curve> begin,
                 std::shared_ptr<cost_curve> step, const planner_params & params) :
    source_(std::move(source)), target_(std::move(target)), begin_(std::move(begin)), step_(std::move(step)),
    params_(params), ngram_(std::move(ngram)), acceptance_(std::max(params.n_seq_max, 1)),
    ngram_acceptance_(std::max(params.n_seq_max, 1)) {
    if (params.n_max < 0 || params.n_nodes_max < 0 || params.n_leaves_max < 1 || params.top_k < 1 ||
        params.n_seq_max < 1 || params.n_nodes_max >= cost_curve::n_max) {
        throw std::invalid_argument(format(
            "planner: expected n_max >= 0, 0 <= n_nodes_max < %d and n_leaves_max, top_k, n_seq_max >= 1, found "
            "%d, %d, %d, %d, %d",
            cost_curve::n_max, params.n_max, params.n_nodes_max, params.n_leaves_max, params.top_k, params.n_seq_max));
    }
    const auto n_seq   = static_cast<size_t>(params.n_seq_max);
    const auto n_nodes = static_cast<size_t>(params.n_nodes_max);
    gates_.resize(n_seq + 1);
    sequences_.resize(n_seq);
    request_of_.resize(n_seq);
    cost_.resize(n_nodes + 1);
    replay_.resize(n_nodes + 1);
    stats.n_chosen.resize(n_nodes + 1);
    set_price(1, 0);
}

void planner::check(llama_seq_id seq_id) const {
    if (seq_id < 0 || static_cast<size_t>(seq_id) >= sequences_.size()) {
        throw std::invalid_argument(
            format("planner: expected a sequence in 0..%zu, found %d", sequences_.size() - 1, seq_id));
    }
}

float planner::accepted(float p, int32_t depth, llama_seq_id seq_id, bool by_ngram) const {
    check(seq_id);
    if (!(p >= 0.0f && p <= 1.0f) || depth < 1) {
        throw std::invalid_argument(format("planner: expected p in 0..1 and depth >= 1, found %g and %d", p, depth));
    }
    return (by_ngram ? ngram_acceptance_ : acceptance_)(p, depth, seq_id, acceptance::rank::best);
}

void planner::check(const std::vector<llama_seq_id> & seq_ids, const std::vector<llama_token> & ids_last,
                    const std::vector<int32_t> & n_rooms) const {
    if (seq_ids.empty() || seq_ids.size() != ids_last.size() || seq_ids.size() != n_rooms.size() ||
        seq_ids.size() > sequences_.size()) {
        throw std::invalid_argument(
            format("planner: expected 1..%zu sequences with a token and room for each, found %zu, %zu and %zu",
                   sequences_.size(), seq_ids.size(), ids_last.size(), n_rooms.size()));
    }
    for (size_t i = 0; i < seq_ids.size(); ++i) {
        if (seq_ids[i] < 0 || static_cast<size_t>(seq_ids[i]) >= sequences_.size() ||
            std::find(seq_ids.begin(), seq_ids.begin() + static_cast<std::ptrdiff_t>(i), seq_ids[i]) !=
                seq_ids.begin() + static_cast<std::ptrdiff_t>(i)) {
            throw std::invalid_argument(
                format("planner: expected different sequences in 0..%zu, found %d", sequences_.size() - 1, seq_ids[i]));
        }
    }
}

void planner::set_price(int32_t n_seqs, int32_t n_rows_extra) {
    n_seqs_              = n_seqs;
    n_base_              = n_seqs + n_rows_extra;
    const float  t_plain = target_->at(n_seqs), t_base = target_->at(n_base_);
    const double plain = n_seqs / (static_cast<double>(t_plain) + t_other_us_);
    price_             = plain * std::max(1.0f, speedup_tokens_ / speedup_time_);
    const bool replays = params_.replays && n_seqs == 1;
    for (size_t n = 0; n < cost_.size(); ++n) {
        const auto  n_rows = n_base_ + static_cast<int32_t>(n);
        const float price  = static_cast<float>(price_);
        cost_[n]           = price * (target_->at(n_rows) - t_base);
        replay_[n]         = replays ? replay_share * price * (target_->at(n_rows + 1) - t_plain) : 0.0f;
    }
}

// of the levels behind the first one, with one node of each sequence
float planner::levels_us(int32_t n_levels, int32_t n_seqs) const {
    if (source_ && source_->is_parallel()) {
        return n_levels > 0 ? std::max(0.0f, step_->at(n_levels * n_seqs) - begin_->at(1)) : 0.0f;
    }
    return static_cast<float>(n_levels) * step_->at(n_seqs);
}

const std::vector<draft_tree> &
planner::propose(const std::vector<llama_seq_id> & seq_ids, const std::vector<llama_token> & ids_last,
                 const std::vector<int32_t> & n_rooms, int32_t n_rows_extra, const std::vector<int32_t> & n_max,
                 const std::vector<int32_t> & n_max_ngram, const std::vector<draw_kind> & draws) {
    const double t_start = now_us();
    check(seq_ids, ids_last, n_rooms);
    for (const auto * limits : { &n_max, &n_max_ngram }) {
        if (!limits->empty() && limits->size() != seq_ids.size()) {
            throw std::invalid_argument(
                format("planner: expected n_max for %zu sequences, found %zu", seq_ids.size(), limits->size()));
        }
    }
    if (!draws.empty() && draws.size() != seq_ids.size()) {
        throw std::invalid_argument(
            format("planner: expected draws for %zu sequences, found %zu", seq_ids.size(), draws.size()));
    }
    for (size_t i = 0; i < draws.size(); ++i) {
        acceptance_.set_draw(seq_ids[i], draws[i]);
        ngram_acceptance_.set_draw(seq_ids[i], draws[i]);
    }
    int32_t n_max_all = 0;
    n_emitted_ = n_best_ = 0;
    value_ = t_expected_ = 0.0f;
    t_draft_us_ = t_source_us_ = 0.0;
    drafted_ = surprised_ = is_partial_ = false;
    set_price(static_cast<int32_t>(seq_ids.size()), std::max(n_rows_extra, 0));

    requests_.clear();
    n_drafting_ = 0;
    seq_ids_.clear();
    ids_last_.clear();
    plans_.resize(seq_ids.size());
    for (size_t i = 0; i < seq_ids.size(); ++i) {
        plans_[i].tokens.clear();
        plans_[i].parents.clear();
        plans_[i].probs.clear();
        plans_[i].sources.clear();
        const auto seq_id   = static_cast<size_t>(seq_ids[i]);
        request_of_[seq_id] = i;
        const auto limit    = [&](const std::vector<int32_t> & limits, bool is_there) {
            return is_there ? std::min(params_.n_max, limits.empty() ? params_.n_max : limits[i]) : 0;
        };
        const int32_t n_room = std::max(n_rooms[i], 0), n_head = limit(n_max, source_ != nullptr),
                      n_ngram  = limit(n_max_ngram, ngram_ != nullptr);
        const int32_t n_levels = std::clamp(n_head, 0, n_room);
        n_max_all              = std::max(n_max_all, source_ != nullptr ? n_head : n_ngram);
        requests_.push_back({ seq_ids[i], n_room, n_levels, std::clamp(n_ngram, 0, n_room) });
        n_drafting_ += n_levels > 0 || requests_.back().n_ngram > 0;
        if (n_levels > 0) {
            seq_ids_.push_back(seq_ids[i]);
            ids_last_.push_back(ids_last[i]);
        }
        if (sequences_[seq_id].id_last != ids_last[i]) {
            sequences_[seq_id].open = false; // not the text that was judged
        }
    }
    n_nodes_ = params_.n_nodes_max;

    nodes_.clear();
    of_head_.clear();
    candidates_.clear();
    n_candidates_ = params_.top_k;
    add_ngrams();
    value_ngrams_ = has_ngrams_ ? choose() : 0.0f;
    drafted_      = ask(n_max_all);
    stats.n_trials += is_trial_;
    if (drafted_) {
        stats.n_drafted++;
        stats.n_probes += !is_trial_ && !gates_[seq_ids.size()].open();
        draft();
    }
    if (is_trial_) {
        const size_t n = std::min(chosen_.size(), static_cast<size_t>(n_trial) * n_drafting_);
        n_best_        = static_cast<int32_t>(n - n % stride());
    }
    if (drafted_ || has_ngrams_) {
        publish();
    }
    stats.n_rounds++;
    stats.n_chosen[static_cast<size_t>(n_best_)]++;
    stats.t_draft_us += t_draft_us_;
    stats.t_plan_us += now_us() - t_start - t_source_us_;
    return plans_;
}

// list the candidates that may be verified together, best first; returns what verifying the best n_best_ is worth
float planner::choose() {
    chosen_.clear();
    cums_.clear();
    node_index_.assign(nodes_.size(), -1); // children that are chosen, -1 = not chosen itself
    int32_t n_leaves = 1;                  // the first one of each sequence is its own
    for (request & r : requests_) {
        r.n_chosen = r.n_first = 0;
    }
    for (const candidate & c : candidates_) {
        const node &  n      = nodes_[static_cast<size_t>(c.node)];
        const int32_t parent = n.parent;
        request &     r      = requests_[request_of_[static_cast<size_t>(n.seq_id)]];
        if (r.n_chosen >= r.n_room) {
            continue;
        }
        if (n_candidates_ > 1) {
            int32_t & n_siblings = parent < 0 ? r.n_first : node_index_[static_cast<size_t>(parent)];
            if (n_siblings < 0) {
                continue;
            }
            if (n_siblings > 0 && n_leaves >= params_.n_leaves_max) {
                continue;
            }
            n_leaves += n_siblings > 0;
            n_siblings++;
        }
        r.n_chosen++;
        node_index_[static_cast<size_t>(c.node)] = 0;
        chosen_.push_back(c.node);
        cums_.push_back(c.cum);
    }
    if (stride() > 1) {
        // level by level, as far as all sequences have one
        order_by_depth();
    }
    return best_of(cums_, n_best_);
}

// of chains that have one length: the chosen nodes of all sequences, level by level
void planner::order_by_depth() {
    const auto depth = [&](int32_t i) {
        return nodes_[static_cast<size_t>(i)].depth;
    };
    std::stable_sort(chosen_.begin(), chosen_.end(), [&](int32_t a, int32_t b) { return depth(a) < depth(b); });
    size_t n_whole = 0;
    while (n_whole + stride() <= chosen_.size() && depth(chosen_[n_whole]) == depth(chosen_[n_whole + stride() - 1])) {
        n_whole += stride();
    }
    chosen_.resize(n_whole);
    cums_.clear();
    for (const int32_t i : chosen_) {
        cums_.push_back(nodes_[static_cast<size_t>(i)].cum);
    }
}

float planner::best_of(const std::vector<float> & cums, int32_t & n_best) const {
    const size_t n         = std::min(cums.size(), static_cast<size_t>(n_nodes_));
    float        best      = 0.0f;
    float        best_rate = static_cast<float>(price_);
    float        gain      = 0.0f;
    float        cum       = 1.0f;
    n_best                 = 0;
    for (size_t i = 0; i < n; ++i) {
        gain += cums[i] - (cum - cums[i]) * replay_[i];
        cum = cums[i];
        if ((i + 1) % stride() != 0) {
            continue;
        }
        const float value = gain - cost_[i + 1];
        if (has_ngrams_ && value > 0.0f) {
            // What the text goes on to say is there in the next step too: a second is worth what this one gives
            const int32_t n_rows = n_base_ + static_cast<int32_t>(i) + 1;
            const float   t_pass = target_->at(n_rows) * (n_rows == 2 * target_->n_last() ? share_unseen : 1.0f);
            const float   rate   = (static_cast<float>(n_seqs_) + gain) / (t_pass + t_other_us_);
            if (rate > best_rate) {
                best_rate = rate;
                best      = value;
                n_best    = static_cast<int32_t>(i) + 1;
            }
        }
        if (value > best && best_rate <= static_cast<float>(price_)) {
            best   = value;
            n_best = static_cast<int32_t>(i) + 1;
        }
    }
    return best;
}

// the plans, and what the sequences will be judged by
void planner::publish() {
    chosen_.resize(static_cast<size_t>(n_best_));
    std::sort(chosen_.begin(), chosen_.end()); // parents first
    bool has_text = false;
    for (const int32_t i : chosen_) {
        const node & n                      = nodes_[static_cast<size_t>(i)];
        draft_tree & plan                   = plans_[request_of_[static_cast<size_t>(n.seq_id)]];
        node_index_[static_cast<size_t>(i)] = static_cast<int32_t>(plan.tokens.size());
        plan.parents.push_back(n.parent < 0 ? -1 : node_index_[static_cast<size_t>(n.parent)]);
        plan.tokens.push_back(n.token);
        plan.probs.push_back(n.in_head >= 0 ? n.p_head : n.p_ngram);
        plan.sources.push_back((n.in_head >= 0 ? draft_tree::by_head : 0) |
                               (n.p_ngram > 0.0f ? draft_tree::by_ngram : 0));
        has_text = has_text || n.p_ngram > 0.0f;
    }
    stats.n_ngram += has_text;
    for (const request & r : requests_) {
        if (r.n_ngram > 0 || (drafted_ && r.n_levels > 0)) {
            sequence & seq = sequences_[static_cast<size_t>(r.seq_id)];
            seq.nodes.clear();
            seq.at   = -1;
            seq.open = true;
        }
    }
    for (size_t i = 0; i < nodes_.size(); ++i) {
        sequence & seq = sequences_[static_cast<size_t>(nodes_[i].seq_id)];
        node_index_[i] = static_cast<int32_t>(seq.nodes.size());
        seq.nodes.push_back(nodes_[i]);
        if (nodes_[i].parent >= 0) {
            seq.nodes.back().parent = node_index_[static_cast<size_t>(nodes_[i].parent)];
        }
    }
}

void planner::judge(llama_seq_id seq_id, const std::vector<llama_token> & tokens) {
    check(seq_id);
    sequence & seq = sequences_[static_cast<size_t>(seq_id)];
    for (const llama_token token : tokens) {
        if (!seq.open) {
            break;
        }
        int32_t next = -1;
        for (size_t i = static_cast<size_t>(seq.at + 1); i < seq.nodes.size(); ++i) {
            const node & n = seq.nodes[i];
            if (n.parent != seq.at) {
                continue;
            }
            const bool accepted = n.token == token;
            if (accepted) {
                next = static_cast<int32_t>(i);
            }
            if (n.in_head >= 0) {
                surprised_ = surprised_ || (accepted && n.rank == acceptance::rank::best &&
                                            acceptance_.at(n.place, n.depth, seq_id, n.rank) < q_surprise);
                acceptance_.observe(n.p_head, n.depth, seq_id, n.rank, accepted);
            }
            if (n.p_ngram > 0.0f) {
                ngram_acceptance_.observe(n.p_ngram, n.depth, seq_id, acceptance::rank::best, accepted);
            }
        }
        seq.at   = next;
        seq.open = next >= 0;
    }
    if (!tokens.empty()) {
        seq.id_last = tokens.back();
        n_emitted_ += static_cast<int32_t>(tokens.size());
        if (seq.n_waiting >= 0) {
            seq.n_waiting += static_cast<int32_t>(tokens.size());
        }
    }
}

void planner::finish(int32_t n_rows, double t_verify_us, double t_other_us) {
    if (n_emitted_ == 0 || !(t_verify_us > 0.0) || !(t_other_us >= 0.0)) {
        return;
    }
    target_->observe(n_rows, t_verify_us);
    t_other_us_ += rate_other * (static_cast<float>(t_other_us) - t_other_us_);
    const float t_plain = target_->at(n_seqs_) + t_other_us_;
    const float t_round = static_cast<float>(t_draft_us_ + t_verify_us + t_other_us);
    speedup_tokens_ += rate_price * (static_cast<float>(n_emitted_) / static_cast<float>(n_seqs_) - speedup_tokens_);
    speedup_time_ += rate_price * (t_round / t_plain - speedup_time_);
    if (drafted_ && !is_trial_) {
        // the extra rows too: plain decoding has none
        const float t_more = target_->at(n_base_ + n_best_) - target_->at(n_seqs_) + t_expected_;
        const float value  = static_cast<float>(n_emitted_ - n_seqs_) - static_cast<float>(price_) * t_more;
        gates_[static_cast<size_t>(n_seqs_)].update(value, value_ - value_ngrams_, n_best_ > 0, surprised_);
        asks_all_ = value_ > value_ngrams_ || surprised_;
    }
    drafted_   = false;
    n_emitted_ = 0;
}

void planner::reset(llama_seq_id seq_id) {
    check(seq_id);
    acceptance_.reset(seq_id);
    ngram_acceptance_.reset(seq_id);
    sequence & seq = sequences_[static_cast<size_t>(seq_id)];
    seq.open       = false;
    seq.n_waiting  = -1;
    seq.is_probed  = is_one_in_four(n_texts_++);
    for (gate & g : gates_) {
        g.new_text();
    }
}

} // namespace eagle3
