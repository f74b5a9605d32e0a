#pragma once

#include "draft/draft_tree.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace eagle3 {

// What a drafter expects in some places of prompts, until it is taken; see drafter::guess_next_text().
class draft_guesses {
  public:
    void                     want() { wanted_ = true; }
    std::vector<draft_guess> take();

    void add(const draft_guess & guess) { guesses_.push_back(guess); }

    // Have n_rows that wait written, n_batch at once and at most n_max of them so that they guess. write(n, guess)
    // writes the first ones
    void flush(int32_t n_rows, int32_t n_batch, int32_t n_max, const std::function<void(int32_t, bool)> & write) const;

  private:
    static constexpr int32_t n_piece_max = 8;  // rows of a long piece that guess
    static constexpr size_t  n_kept_max  = 64; // are enough, if nobody takes them

    bool                     wanted_ = false;
    std::vector<draft_guess> guesses_;
};

} // namespace eagle3
