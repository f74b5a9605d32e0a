#include "draft/guesses.h"

#include <algorithm>
#include <utility>

namespace eagle3 {

std::vector<draft_guess> draft_guesses::take() {
    wanted_ = wanted_ && guesses_.empty();
    return std::exchange(guesses_, {});
}

void draft_guesses::flush(int32_t n_rows, int32_t n_batch, int32_t n_max,
                          const std::function<void(int32_t, bool)> & write) const {
    const auto write_some = [&](int32_t n, bool guess) {
        if (n > 0) {
            write(n, guess);
        }
    };
    for (; n_rows > 0; n_rows -= std::min(n_rows, n_batch)) {
        const int32_t n       = std::min(n_rows, n_batch);
        const bool    guesses = wanted_ && guesses_.size() < n_kept_max;
        const int32_t n_guess = guesses ? std::min({ n, n_piece_max, n_max }) : 0;
        const int32_t n_first = (n - n_guess) / 2; // the end of a chat prompt is its template's, which nobody drafts
        write_some(n_first, false);
        write_some(n_guess, true);
        write_some(n - n_first - n_guess, false);
    }
}

} // namespace eagle3
