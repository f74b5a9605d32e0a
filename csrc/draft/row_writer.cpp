#include "draft/row_writer.h"

#include <algorithm>

namespace eagle3 {

void row_writer::flush(llama_seq_id seq_id) {
    guesses_.flush(memory_.sequence(seq_id).n_rows() - 1, n_batch_, n_batch_,
                   [&](int32_t n_rows, bool guess) { write(seq_id, n_rows, guess); });
}

// the first waiting rows; guess: go all the way with them
void row_writer::write(llama_seq_id seq_id, int32_t n_rows, bool guess) {
    draft_sequence & seq = memory_.sequence(seq_id);
    pass_.clear(guess ? graph_kind::catch_up : graph_kind::kv_only, guess ? 1 : 0);
    pass_.features.push_back({ seq.rows(), n_rows });
    for (int32_t i = 0; i < n_rows; ++i) {
        pass_.add_row(seq_id, seq.tokens()[i + 1], seq.pos_first() + i, seq.pos_start()).is_out = guess;
    }
    pass_.state_last = n_rows - 1;
    runner_.compute(pass_);
    if (guess) {
        add_guesses(seq_id, n_rows);
    }
    seq.on_written(n_rows);
}

// Row i is paired with token i + 1, so its output is compared with token i + 2. Left out is what the head cannot know:
// rows of an image, which have the same token each, and tokens outside its vocabulary, such as those of a chat's
// template.
void row_writer::add_guesses(llama_seq_id seq_id, int32_t n_rows) {
    const draft_sequence & seq = memory_.sequence(seq_id);
    for (int32_t i = 0; i < std::min(n_rows, seq.n_rows() - 2); ++i) {
        const llama_token token = seq.tokens()[i + 2];
        const auto &      found = runner_.candidates(i, 0);
        if (!found.empty() && token != seq.tokens()[i + 1] && weights_.can_draft(token)) {
            guesses_.add({ seq_id, found.front().p, weights_.to_target(found.front().id) == token });
        }
    }
}

} // namespace eagle3
