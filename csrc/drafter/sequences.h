#pragma once

#include "drafter/limits.h"
#include "drafter/sequence.h"

#include "llama.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <vector>

namespace eagle3 {

// The part of a saved state besides rows, tokens and slots.
struct saved_sequence {
    int32_t pos_start;
    int32_t pos_first;
    int32_t n_tokens;
    int32_t seeded; // -1 = not
};

// The sequences of a drafter that reads the target's rows: their waiting rows and their states, with checks of the
// arguments that name them.
class draft_sequences : public draft_limits {
  public:
    draft_sequences(int32_t n_row_floats, const draft_limits & limits) :
        draft_limits(limits), n_row_floats_(n_row_floats),
        sequences_(static_cast<size_t>(limits.n_seq_max()), draft_sequence(n_row_floats)) {}

    // Throws std::invalid_argument if there is no such sequence, as do all methods that name one.
    const draft_sequence & operator[](llama_seq_id seq_id) const;
    draft_sequence &       operator[](llama_seq_id seq_id);

    void check_process(const llama_token * tokens, int32_t n_tokens, int32_t n_past, llama_seq_id seq_id) const {
        draft_limits::check_process(tokens, n_tokens, n_past, (*this)[seq_id].n_past());
    }

    void check_copy(llama_seq_id src, llama_seq_id dst, int32_t n_past) const {
        draft_limits::check_copy(src, dst, n_past, (*this)[src].n_past());
    }

    // Appends rows as drafter::process() does. flush() must evaluate all waiting rows of the sequence but the last.
    // n_batch: rows that may wait while others are appended.
    void append(const float * rows, const llama_token * tokens, int32_t n_tokens, llama_seq_id seq_id,
                const int32_t * row_ids, bool may_wait, int32_t n_batch,
                const std::function<void(llama_seq_id)> & flush);

    // States. After a saved_sequence come n_bytes() of rows and tokens, which save() writes; it returns their end.
    saved_sequence describe(llama_seq_id seq_id) const;
    size_t         n_bytes(const saved_sequence & saved) const;
    uint8_t *      save(llama_seq_id seq_id, uint8_t * dst) const;

    // The slots that belong to it; -1 if it does not fit these sequences, see misfit().
    int32_t               n_slots(const saved_sequence & saved) const;
    std::invalid_argument misfit(const saved_sequence & saved) const;

    // The sequence of the rows and tokens at src. Throws std::invalid_argument.
    draft_sequence load(const saved_sequence & saved, const uint8_t * src) const;

  private:
    static constexpr int32_t n_wait_max   = 128;     // rows of a sequence that wait for a draft
    static constexpr size_t  n_wait_bytes = 8 << 20; // the same, in bytes, if rows may wait

    int32_t                     n_row_floats_;
    std::vector<draft_sequence> sequences_;
};

} // namespace eagle3
