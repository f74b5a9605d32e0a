#include "drafters/eagle3/row_writer.h"

#include <algorithm>

namespace eagle3 {

void row_writer::flush(llama_seq_id seq_id) {
    draft_sequence & seq = memory_.sequence(seq_id);
    for (int32_t n_left = seq.n_rows() - 1; n_left > 0;) {
        const int32_t n = std::min(n_left, n_batch_);
        pass_.clear(graph_kind::kv_only, 0);
        pass_.features.push_back({ seq.rows(), n });
        for (int32_t i = 0; i < n; ++i) {
            pass_.add_row(seq_id, seq.tokens()[i + 1], seq.pos_first() + i, seq.pos_start()).is_out = false;
        }
        pass_.state_last = n - 1;
        runner_.compute(pass_);
        seq.on_written(n);
        n_left -= n;
    }
}

} // namespace eagle3
