#include "drafter/sequences.h"

#include "error.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace eagle3 {

const draft_sequence & draft_sequences::operator[](llama_seq_id seq_id) const {
    check(seq_id);
    return sequences_[seq_id];
}

draft_sequence & draft_sequences::operator[](llama_seq_id seq_id) {
    check(seq_id);
    return sequences_[seq_id];
}

void draft_sequences::append(const float * rows, const llama_token * tokens, int32_t n_tokens, llama_seq_id seq_id,
                             const int32_t * row_ids, bool may_wait, int32_t n_batch,
                             const std::function<void(llama_seq_id)> & flush) {
    draft_sequence & seq     = (*this)[seq_id];
    const auto       n_float = static_cast<size_t>(n_row_floats_);
    const auto       n_wait  = static_cast<int32_t>(n_wait_bytes / (n_float * sizeof(float)));
    for (int32_t i = 0; i < n_tokens; ++i) {
        seq.append(rows + n_float * (row_ids ? row_ids[i] : i), tokens[i]);
        if (seq.n_rows() > n_batch) {
            flush(seq_id);
        }
    }
    // a prompt is written at once; a few rows wait, since writing many together is cheaper
    if ((n_tokens > n_catch_up_max && !may_wait) || seq.n_rows() > std::max(n_wait_max, may_wait ? n_wait : 0)) {
        flush(seq_id);
    }
}

saved_sequence draft_sequences::describe(llama_seq_id seq_id) const {
    const draft_sequence & seq = (*this)[seq_id];
    return { seq.pos_start(), seq.pos_first(), seq.n_rows(), seq.seeded().value_or(-1) };
}

size_t draft_sequences::n_bytes(const saved_sequence & saved) const {
    return static_cast<size_t>(saved.n_tokens) *
           (static_cast<size_t>(n_row_floats_) * sizeof(float) + sizeof(llama_token));
}

uint8_t * draft_sequences::save(llama_seq_id seq_id, uint8_t * dst) const {
    const draft_sequence & seq    = (*this)[seq_id];
    const auto             n_rows = static_cast<size_t>(seq.n_rows());
    // not memcpy: without rows there is nothing to copy from
    dst = std::copy_n(reinterpret_cast<const uint8_t *>(seq.rows()), n_rows * n_row_floats_ * sizeof(float), dst);
    return std::copy_n(reinterpret_cast<const uint8_t *>(seq.tokens()), n_rows * sizeof(llama_token), dst);
}

int32_t draft_sequences::n_slots(const saved_sequence & saved) const {
    const bool fits = saved.pos_start >= 0 && saved.pos_first >= saved.pos_start && saved.n_tokens >= 0 &&
                      saved.pos_first <= n_ctx() && saved.n_tokens <= n_ctx() - saved.pos_first;
    return fits ? saved.pos_first - saved.pos_start + (saved.seeded >= 0 ? 1 : 0) : -1;
}

std::invalid_argument draft_sequences::misfit(const saved_sequence & saved) const {
    return std::invalid_argument(format("the saved state has %d + %d positions, the draft's context holds %d",
                                        saved.pos_first, saved.n_tokens, n_ctx()));
}

draft_sequence draft_sequences::load(const saved_sequence & saved, const uint8_t * src) const {
    const auto               n_rows = static_cast<size_t>(saved.n_tokens);
    std::vector<float>       rows(n_rows * n_row_floats_);
    std::vector<llama_token> tokens(n_rows);
    std::copy_n(src, rows.size() * sizeof(float), reinterpret_cast<uint8_t *>(rows.data()));
    src += rows.size() * sizeof(float);
    std::copy_n(src, n_rows * sizeof(llama_token), reinterpret_cast<uint8_t *>(tokens.data()));
    const bool is_seeded = saved.seeded >= 0;
    if (!std::all_of(tokens.begin(), tokens.end(), [this](llama_token id) { return is_token(id); }) ||
        saved.seeded < -1 || (is_seeded && (n_rows != 1 || !is_token(saved.seeded)))) {
        throw std::invalid_argument("the saved state of the draft is damaged: its tokens are not in the vocabulary");
    }
    draft_sequence seq(n_row_floats_);
    seq.restore(saved.pos_start, saved.pos_first, std::move(rows), std::move(tokens),
                is_seeded ? std::optional<llama_token>(saved.seeded) : std::nullopt);
    return seq;
}

} // namespace eagle3
