#pragma once

#include "llama.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace eagle3 {

// What a drafter keeps of one sequence besides its K/V.
//
// Pairing. Slot p of the cache holds the pair (token at p + 1, hidden row at p) and has RoPE position p. The last row
// of a target batch therefore waits: its slot can only be written when the next token is known. Rows that arrived and
// are not yet in the cache wait here:
//
//   position   pos_start ... pos_first-1 | pos_first ........ n_past-1 |
//   row        in the cache              | in rows()                   |
//   token      -                         | in tokens(), one per row    | id_last, given to propose()
//
// Positions before pos_start were never seen; nothing attends to them.
//
// A draft leaves the last row waiting, `seeded` with the token that it was given: slot pos_first holds that pair
// already, so the row must be written again only if another token follows.
class draft_sequence {
  public:
    explicit draft_sequence(int32_t n_row_floats) : n_row_floats_(n_row_floats) {}

    int32_t pos_start() const { return pos_start_; }
    int32_t pos_first() const { return pos_first_; }
    int32_t n_rows() const { return static_cast<int32_t>(tokens_.size()) - n_done_; }
    int32_t n_past() const { return pos_first_ + n_rows(); }

    // The waiting rows and their tokens, n_rows() of each.
    const float *       rows() const { return rows_.data() + static_cast<size_t>(n_done_) * n_row_floats_; }
    const llama_token * tokens() const { return tokens_.data() + n_done_; }

    const std::optional<llama_token> & seeded() const { return seeded_; }

    // The end of the positions whose slots are in the cache.
    int32_t n_slots() const { return pos_first_ + (seeded_ ? 1 : 0); }

    // Appends the row and the token at position n_past(). A row that is not finite becomes zeros: some devices multiply
    // masked slots by zero, so NaN in one of them would reach every later draft, even after it was truncated.
    void append(const float * row, llama_token token);

    // Tells that the first n rows were written to the cache.
    void on_written(int32_t n);

    // Tells that all rows were written to the cache, the last one with this token after it.
    void on_proposed(llama_token id_last);

    // Removes positions >= n_past. Returns the position from which rows must be appended again: n_past, or n_past - 1
    // if the row at n_past - 1 was written already, since it now waits for another token. same_next: it does not, as
    // the token at n_past will be the same.
    int32_t truncate(int32_t n_past, bool same_next = false);

    // A copy of positions < n_past; see truncate for where rows must be appended.
    draft_sequence prefix(int32_t n_past, bool same_next = false) const;

    // Clears it; rows come from n_past on.
    void restart(int32_t n_past);

    // Restores what was saved; the slots are in the cache already.
    void restore(int32_t pos_start, int32_t pos_first, std::vector<float> rows, std::vector<llama_token> tokens,
                 std::optional<llama_token> seeded);

  private:
    int32_t n_row_floats_;
    int32_t pos_start_ = 0;
    int32_t pos_first_ = 0;

    // The first n_done rows are written; they are still there because moving the others takes time.
    int32_t                    n_done_ = 0;
    std::vector<float>         rows_;
    std::vector<llama_token>   tokens_;
    std::optional<llama_token> seeded_;
};

} // namespace eagle3
