#include "drafter/sequence.h"

#include <algorithm>
#include <cstring>

namespace eagle3 {

// Tests exponents, which a compiler does for several floats at once.
static bool is_finite(const float * row, int32_t n) {
    constexpr uint32_t exponent = 0x7f800000;
    uint32_t           is_bad   = 0;
    for (int32_t i = 0; i < n; ++i) {
        uint32_t bits;
        std::memcpy(&bits, row + i, sizeof(bits));
        is_bad |= static_cast<uint32_t>((bits & exponent) == exponent);
    }
    return is_bad == 0;
}

void draft_sequence::append(const float * row, llama_token token) {
    if (seeded_ && *seeded_ == token) {
        on_written(1);
    }
    seeded_.reset();
    if (n_done_ > 0 && n_rows() <= n_done_) {
        // as many rows are written as have to be moved, so each row is moved once at most
        rows_.erase(rows_.begin(), rows_.begin() + static_cast<std::ptrdiff_t>(n_done_) * n_row_floats_);
        tokens_.erase(tokens_.begin(), tokens_.begin() + n_done_);
        n_done_ = 0;
    }
    if (is_finite(row, n_row_floats_)) {
        rows_.insert(rows_.end(), row, row + n_row_floats_);
    } else {
        rows_.resize(rows_.size() + n_row_floats_);
    }
    tokens_.push_back(token);
}

void draft_sequence::on_written(int32_t n) {
    n_done_ += n;
    pos_first_ += n;
    if (n_rows() == 0) {
        rows_.clear();
        tokens_.clear();
        n_done_ = 0;
    }
}

void draft_sequence::on_proposed(llama_token id_last) {
    on_written(n_rows() - 1);
    seeded_ = id_last;
}

int32_t draft_sequence::truncate(int32_t n_past, bool same_next) {
    n_past                    = std::max(n_past, 0);
    // the last slot in the cache holds the token at pos_first: if no row waits there, that slot is removed too
    const bool last_slot_goes = n_rows() == 0 && n_past == pos_first_ && n_past > pos_start_ && !same_next;
    if (n_past >= this->n_past() && !last_slot_goes) {
        return this->n_past();
    }
    if (n_past > pos_first_) {
        tokens_.resize(n_done_ + n_past - pos_first_);
        rows_.resize(tokens_.size() * n_row_floats_);
        return n_past;
    }
    const int32_t start = pos_start_;
    if (n_past <= start) {
        restart(n_past);
    } else {
        restart(same_next ? n_past : n_past - 1);
        pos_start_ = start;
    }
    return pos_first_;
}

draft_sequence draft_sequence::prefix(int32_t n_past, bool same_next) const {
    const int32_t  n = std::clamp(n_past - pos_first_, 0, n_rows());
    draft_sequence result(n_row_floats_);
    result.restore(pos_start_, pos_first_, { rows(), rows() + static_cast<size_t>(n) * n_row_floats_ },
                   { tokens(), tokens() + n }, n > 0 ? seeded_ : std::nullopt);
    result.truncate(n_past, same_next);
    return result;
}

void draft_sequence::restart(int32_t n_past) {
    rows_.clear();
    tokens_.clear();
    n_done_ = 0;
    seeded_.reset();
    pos_start_ = pos_first_ = n_past;
}

void draft_sequence::restore(int32_t pos_start, int32_t pos_first, std::vector<float> rows,
                             std::vector<llama_token> tokens, std::optional<llama_token> seeded) {
    pos_start_ = pos_start;
    pos_first_ = pos_first;
    n_done_    = 0;
    rows_      = std::move(rows);
    tokens_    = std::move(tokens);
    seeded_    = seeded;
}

} // namespace eagle3
