// Whether the head is asked at all, and for whom.

#include "error.h"
#include "planner/planner.h"

#include <algorithm>
#include <stdexcept>

namespace eagle3 {

namespace {

constexpr int32_t n_trial_wait_max = 1024;
constexpr float   q_best           = 0.995f;

} // namespace

bool planner::can_pay(int32_t n_seqs, int32_t n_rows_extra, int32_t n_max) const {
    const int32_t n_base  = n_seqs + n_rows_extra;
    const float   t_plain = target_->at(n_base);
    const float   plain   = static_cast<float>(n_seqs) / (t_plain + t_other_us_);
    float         gain    = 0.0f;
    float         cum     = 1.0f;
    for (int32_t depth = 1; depth <= n_max && n_seqs * depth <= params_.n_nodes_max; ++depth) {
        cum *= q_best;
        gain += static_cast<float>(n_seqs) * cum;
        const float t_draft = begin_->at(n_seqs * depth) + levels_us(depth - 1, n_seqs);
        if (gain > plain * (target_->at(n_base + n_seqs * depth) - t_plain + t_draft)) {
            return true;
        }
    }
    return false;
}

// is the head asked in this step?
bool planner::ask(int32_t n_max) {
    const bool has_head = !seq_ids_.empty();
    is_trial_           = false;
    if ((!has_head && !has_ngrams_) || n_nodes_ == 0) {
        return false;
    }
    if (can_pay(n_seqs_, n_base_ - n_seqs_, n_max)) {
        gate & g = gates_[static_cast<size_t>(n_seqs_)];
        return has_head && (value_ngrams_ <= 0.0f || head_adds()) && (g.open() || leave_waiting()) && g.ask();
    }
    if (value_ngrams_ > 0.0f || n_max < n_trial || n_nodes_ < n_trial * n_seqs_ || --trial_wait_ > 0) {
        return false;
    }
    is_trial_    = true;
    trial_waits_ = std::min(2 * trial_waits_, n_trial_wait_max);
    trial_wait_  = trial_waits_;
    return has_head;
}

// A probe reads few rows that wait, for which sequences are left out: unless the one before has found that the head is
// worth reading all. Returns whether any is left.
bool planner::leave_waiting() {
    const size_t n_all  = seq_ids_.size();
    size_t       n      = 0;
    int32_t      n_left = n_ready_max;
    for (size_t i = 0; i < n_all; ++i) {
        const int32_t n_waiting = source_->n_waiting(seq_ids_[i]);
        if (!asks_all_ && n_waiting > n_left) {
            requests_[request_of_[static_cast<size_t>(seq_ids_[i])]].n_levels = 0;
            continue;
        }
        n_left -= n_waiting;
        seq_ids_[n]    = seq_ids_[i];
        ids_last_[n++] = ids_last_[i];
    }
    seq_ids_.resize(n);
    ids_last_.resize(n);
    is_partial_ = n < n_all;
    if (is_partial_ && !has_ngrams_) {
        n_drafting_ = n;
    }
    return n > 0;
}

bool planner::may_wait(llama_seq_id seq_id, int32_t n_seqs) const {
    check(seq_id);
    if (n_seqs < 1 || static_cast<size_t>(n_seqs) >= gates_.size()) {
        throw std::invalid_argument(format("planner: expected 1..%zu sequences, found %d", gates_.size() - 1, n_seqs));
    }
    return !worth_asking(n_seqs) && !(can_pay(n_seqs) && sequences_[static_cast<size_t>(seq_id)].is_probed);
}

} // namespace eagle3
