#include "drafter/limits.h"

#include "error.h"

#include <algorithm>
#include <stdexcept>

namespace eagle3 {

void draft_limits::check(llama_seq_id seq_id) const {
    if (seq_id < 0 || seq_id >= n_seq_max_) {
        throw std::invalid_argument(format("sequence %d: the draft was made for %d sequences, expected 0..%d", seq_id,
                                           n_seq_max_, n_seq_max_ - 1));
    }
}

void draft_limits::check_token(const char * what, llama_token token) const {
    if (!is_token(token)) {
        throw std::invalid_argument(format("%s %d: expected an id in 0..%d", what, token, n_vocab_ - 1));
    }
}

void draft_limits::check_process(const llama_token * tokens, int32_t n_tokens, int32_t n_past, int32_t n_known) const {
    if (n_tokens <= 0) {
        return;
    }
    if (n_past != n_known) {
        throw error(format("the draft expects rows from position %d on, got position %d", n_known, n_past));
    }
    if (n_tokens > n_ctx_ - n_past) {
        throw context_full_error(
            format("the draft's context has %d slots, position %d does not fit", n_ctx_, n_past + n_tokens - 1));
    }
    for (int32_t i = 0; i < n_tokens; ++i) {
        check_token("token", tokens[i]);
    }
}

void draft_limits::check_add_image(int32_t first, int32_t n_known) {
    if (first != n_known) {
        throw error(format("the draft expects rows from position %d on, got an image at %d", n_known, first));
    }
}

void draft_limits::check_copy(llama_seq_id src, llama_seq_id dst, int32_t n_past, int32_t n_known) const {
    check(dst);
    if (src == dst) {
        throw std::invalid_argument(format("sequence %d cannot be copied to itself", src));
    }
    if (n_past < 0 || n_past > n_known) {
        throw std::invalid_argument(
            format("expected a position of sequence %d, in 0..%d, found %d", src, n_known, n_past));
    }
}

void draft_limits::check_restart(int32_t n_past, llama_seq_id seq_id) const {
    check(seq_id);
    if (n_past < 0 || n_past > n_ctx_) {
        throw std::invalid_argument(format("expected a position in 0..%d, found %d", n_ctx_, n_past));
    }
}

void draft_limits::check_begin(const std::vector<llama_seq_id> & seq_ids,
                               const std::vector<llama_token> &  ids_last) const {
    if (seq_ids.size() != ids_last.size()) {
        throw std::invalid_argument(
            format("expected one id_last per sequence, found %zu for %zu", ids_last.size(), seq_ids.size()));
    }
    for (size_t i = 0; i < seq_ids.size(); ++i) {
        check(seq_ids[i]);
        check_token("id_last", ids_last[i]);
    }
    std::vector<llama_seq_id> ids = seq_ids;
    std::sort(ids.begin(), ids.end());
    const auto twice = std::adjacent_find(ids.begin(), ids.end());
    if (twice != ids.end()) {
        throw std::invalid_argument(format("sequence %d is named twice", *twice));
    }
}

} // namespace eagle3
