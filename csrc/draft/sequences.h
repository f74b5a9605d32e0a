#pragma once

#include "draft/sequence.h"

#include "llama.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <vector>

namespace eagle3 {

// what a saved state says of a sequence, beside its rows and tokens and what belongs to slots
struct saved_sequence {
    int32_t pos_start;
    int32_t pos_first;
    int32_t n_tokens;
    int32_t seeded; // -1 = not
};

// The sequences of a drafter: the rows of each that wait, and what arguments that name them must be. Checks throw what
// drafter's methods of the same names throw.
class draft_sequences {
  public:
    // n_vocab: tokens of the target. n_ctx: positions of each sequence
    draft_sequences(int32_t n_row_floats, int32_t n_vocab, int32_t n_ctx, int32_t n_seq_max) :
        n_row_floats_(n_row_floats), n_vocab_(n_vocab), n_ctx_(n_ctx),
        sequences_(static_cast<size_t>(n_seq_max), draft_sequence(n_row_floats)) {}

    int32_t n_vocab() const { return n_vocab_; }
    int32_t n_ctx() const { return n_ctx_; }
    int32_t n_seq_max() const { return static_cast<int32_t>(sequences_.size()); }

    // throws std::invalid_argument if there is no such sequence; so do all others that name one
    void                   check(llama_seq_id seq_id) const;
    const draft_sequence & operator[](llama_seq_id seq_id) const;
    draft_sequence &       operator[](llama_seq_id seq_id);

    void check_process(const llama_token * tokens, int32_t n_tokens, int32_t n_past, llama_seq_id seq_id) const;
    void check_add_image(int32_t first, llama_seq_id seq_id) const;
    void check_copy(llama_seq_id src, llama_seq_id dst, int32_t n_past) const;
    void check_restart(int32_t n_past, llama_seq_id seq_id) const;
    void check_begin(const std::vector<llama_seq_id> & seq_ids, const std::vector<llama_token> & ids_last) const;

    static constexpr int32_t n_catch_up_max = 16; // more waiting rows than this are flushed before something is drafted

    // Append rows as drafter::process() does; flush() evaluates all waiting rows of the sequence but the last. n_batch:
    // rows that may wait while others are appended
    void append(const float * rows, const llama_token * tokens, int32_t n_tokens, llama_seq_id seq_id,
                const int32_t * row_ids, bool may_wait, int32_t n_batch,
                const std::function<void(llama_seq_id)> & flush);

    // States. A saved sequence is followed by n_bytes() of rows and tokens, which save() writes; it returns their end.
    saved_sequence describe(llama_seq_id seq_id) const;
    size_t         n_bytes(const saved_sequence & saved) const;
    uint8_t *      save(llama_seq_id seq_id, uint8_t * dst) const;

    // slots that belong to it; -1 if it cannot be one of these sequences, which misfit() says
    int32_t               n_slots(const saved_sequence & saved) const;
    std::invalid_argument misfit(const saved_sequence & saved) const;

    // the sequence of these rows and tokens; throws std::invalid_argument
    draft_sequence load(const saved_sequence & saved, const uint8_t * src) const;

  private:
    static constexpr int32_t n_wait_max   = 128;     // rows wait for a proposal; more than this are written without
    static constexpr size_t  n_wait_bytes = 8 << 20; // unless they may wait: then so much of each sequence does

    bool is_token(llama_token token) const { return token >= 0 && token < n_vocab_; }
    void check_token(const char * what, llama_token token) const;

    int32_t                     n_row_floats_;
    int32_t                     n_vocab_;
    int32_t                     n_ctx_;
    std::vector<draft_sequence> sequences_;
};

} // namespace eagle3
