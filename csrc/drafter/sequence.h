#pragma once

#include "llama.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace eagle3 {

// What the drafter keeps of one sequence beside its K/V.
//
// Pairing. Slot p of the cache holds the pair (token at p + 1, hidden row at p) and has RoPE position p. The last row
// of a target batch therefore waits: its slot can only be written when the next token is known. Rows that arrived and
// are not yet in the cache wait here:
//
//   position   pos_start ... pos_first-1 | pos_first ........ n_past-1 |
//   row        in the cache              | in rows()                   |
//   token      -                         | in tokens(), one per row    | id_last, given to propose()
//
// What lies before pos_start was never seen; nothing attends to it.
//
// A proposal leaves the last row waiting, `seeded` with the token that it was given: slot pos_first holds that pair
// already, so that the row has to be written again only if another token follows.
class draft_sequence {
  public:
    explicit draft_sequence(int32_t n_row_floats) : n_row_floats_(n_row_floats) {}

    int32_t pos_start() const { return pos_start_; }
    int32_t pos_first() const { return pos_first_; }
    int32_t n_rows() const { return static_cast<int32_t>(tokens_.size()) - n_done_; }
    int32_t n_past() const { return pos_first_ + n_rows(); }

    // the waiting ones, n_rows() of each
    const float *       rows() const { return rows_.data() + static_cast<size_t>(n_done_) * n_row_floats_; }
    const llama_token * tokens() const { return tokens_.data() + n_done_; }

    const std::optional<llama_token> & seeded() const { return seeded_; }

    // positions whose slots are in the cache end here
    int32_t n_slots() const { return pos_first_ + (seeded_ ? 1 : 0); }

    // Row and token at position n_past(). A row that is not finite becomes zeros: some devices multiply masked slots by
    // zero, so that NaN in one of them would reach every later draft, also after it was truncated.
    void append(const float * row, llama_token token);

    // the first n rows were written to the cache
    void on_written(int32_t n);

    // all rows were written to the cache, the last one with this token after it
    void on_proposed(llama_token id_last);

    // Remove positions >= n_past. Returns the position from which rows must come again: n_past, or n_past - 1 if the
    // row before it is gone, since that one waits for another token now; unless the token at n_past stays the
    // same_next.
    int32_t truncate(int32_t n_past, bool same_next = false);

    // the same positions < n_past; see truncate for where rows must come from then
    draft_sequence prefix(int32_t n_past, bool same_next = false) const;

    // clear it; rows come from n_past on
    void restart(int32_t n_past);

    // as saved; what belongs to slots is in the cache already
    void restore(int32_t pos_start, int32_t pos_first, std::vector<float> rows, std::vector<llama_token> tokens,
                 std::optional<llama_token> seeded);

  private:
    int32_t n_row_floats_;
    int32_t pos_start_ = 0;
    int32_t pos_first_ = 0;

    // The first n_done of them are written and only there because moving the others costs time.
    int32_t                    n_done_ = 0;
    std::vector<float>         rows_;
    std::vector<llama_token>   tokens_;
    std::optional<llama_token> seeded_;
};

} // namespace eagle3
