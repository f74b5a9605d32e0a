#pragma once

#include "target/feature_tap.h"

#include "llama.h"

#include <cstdint>
#include <vector>

namespace eagle3 {

// The target's context, as speculative decoding needs it: decode, sample row by row, take back. Everything that could
// make llama.cpp abort is checked first. The context and the model belong to somebody else. For one thread at a time.
class target {
  public:
    // tap: may be null, else it is attached here
    target(llama_context * ctx, const llama_model * model, feature_tap * tap);

    target(const target &)             = delete;
    target & operator=(const target &) = delete;

    // forget the positions from n_past on and evaluate the tokens there, in sequence 0, with one llama_decode.
    // logits: for all tokens, or only for the last one. If it throws, the memory ends at n_past
    void decode(const std::vector<llama_token> & tokens, int32_t n_past, bool logits_all = true);

    // the general form. Nothing is forgotten before; if it throws, what the batch had added is taken back
    void decode_batch(const std::vector<llama_token> & tokens, const std::vector<llama_pos> & pos,
                      const std::vector<std::vector<llama_seq_id>> & seq_ids, const std::vector<bool> & logits);

    // row: index in the last batch; its logits must have been asked for
    llama_token   sample(llama_sampler * smpl, int32_t row) const; // and accept
    llama_token   argmax(int32_t row) const;                       // the first of the greatest
    const float * logits(int32_t row) const;

    // forget the positions from n_past on in sequence 0
    void trim(int32_t n_past);

    // the context is about to be freed: every later call throws
    void close() { ctx = nullptr; }

    const std::vector<llama_token> & tokens() const { return batch_tokens; }
    const std::vector<llama_pos> &   pos() const { return batch_pos; }
    const feature_tap *              tap() const { return tap_ptr; }
    int32_t                          n_vocab() const { return n_vocab_tgt; }
    int64_t                          t_decode_us() const { return t_decode; } // in llama_decode and synchronize

  private:
    void check_open() const;
    void check_tokens(const std::vector<llama_token> & tokens) const;
    void forget(llama_seq_id seq, llama_pos n_past);
    void run();

    llama_context * ctx;
    feature_tap *   tap_ptr;
    int32_t         n_vocab_tgt;
    int32_t         n_batch;
    int32_t         n_ctx;
    int32_t         n_seq_max;
    int32_t         n_swa;

    // the last batch
    std::vector<llama_token>               batch_tokens;
    std::vector<llama_pos>                 batch_pos;
    std::vector<int32_t>                   batch_n_seq;
    std::vector<std::vector<llama_seq_id>> batch_seqs; // decode_batch only
    std::vector<llama_seq_id *>            batch_seq;
    std::vector<int8_t>                    batch_logits;
    llama_seq_id                           seq_zero = 0;
    bool                                   decoded  = false;

    int64_t t_decode = 0;
};

} // namespace eagle3
