#pragma once

#include "target/batch_part.h"
#include "target/device_argmax.h"
#include "target/feature_tap.h"
#include "target/row_sampler.h"
#include "target/target_batch.h"
#include "target/target_memory.h"

#include "llama.h"

#include <cstdint>
#include <vector>

namespace eagle3 {

// The target's context with what speculative decoding needs: decode, sample row by row, take back. Everything that
// could make llama.cpp abort is checked first. The caller owns context and model. Only one thread may use it at a time.
//
// Row i belongs to token i that decode*() was given, whatever else the batch held (see seq_rollback: replay).
class target {
  public:
    // tap: is attached here; may be null. n_seq, n_guards: see target_memory.
    target(llama_context * ctx, const llama_model * model, feature_tap * tap, int32_t n_seq = 0, int32_t n_guards = 0);

    target(const target &)             = delete;
    target & operator=(const target &) = delete;

    // The sequences' contents, and going back in them.
    target_memory &       memory() { return memory_; }
    const target_memory & memory() const { return memory_; }

    // Evaluates all parts, each of another sequence, by one llama_decode: a part replaces its sequence's tokens from
    // n_past on. If this throws, every sequence ends at n_past or before it.
    void decode(const std::vector<batch_part> & parts);

    // The general form. Nothing is removed first; if this throws, what the batch had added is taken back.
    void decode_batch(const std::vector<llama_token> & tokens, const std::vector<llama_pos> & pos,
                      const std::vector<std::vector<llama_seq_id>> & seq_ids, const std::vector<bool> & logits);

    // Makes the memory hold exactly the sequences' tokens, without replays or leaves. Must be called before the context
    // is used by other means.
    void settle();

    // row: a row of the last batch whose logits were requested; -1: the last row of a decode that was not ours.
    llama_token   argmax(int32_t row) const; // the first of the greatest
    const float * logits(int32_t row) const;

    // Samples from a row, see row_sampler.
    llama_token sample(llama_sampler * smpl, int32_t row, int32_t n_best = 0, llama_sampler * grammar = nullptr) {
        return sampler_.sample(smpl, logits(row), n_best, grammar);
    }

    // Samples from rows, and from n_vocab() logits that the caller has changed.
    row_sampler & sampler() { return sampler_; }

    // Lets the target's device take the argmax of each row. logits() and sample() then throw, since the rows stay
    // there. n_outputs: most rows of a sequence with logits in a batch; 0 = fetch logits again.
    void set_device_argmax(int32_t n_outputs);

    bool logits_are_remote() const { return is_remote_; }

    // Must be called before the context is freed: every later call throws.
    void close();

    // Positions of a row: 4 with M-RoPE, else 1.
    int32_t n_pos_per_row() const { return memory_.has_sections() ? 4 : 1; }
    int32_t n_embd_inp() const { return n_embd_; }
    int32_t n_ubatch() const { return n_ubatch_; }
    int32_t n_vocab() const { return n_vocab_; }

    const std::vector<llama_token> & tokens() const { return batch_.row_tokens(); }
    const std::vector<llama_pos> &   pos() const { return batch_.row_pos(); }
    const feature_tap *              tap() const { return tap_; }
    int64_t                          n_batches() const { return n_batches_; }     // so far, those that failed too
    int64_t                          t_decode_us() const { return t_decode_us_; } // in llama_decode and synchronize

  private:
    int32_t check_part(const batch_part & part) const;
    void    check_media(const batch_part & part) const;
    void    check_row(int32_t row) const;
    void    check_outputs() const;
    void    check_tokens(const std::vector<llama_token> & tokens) const;
    void    check_fits(size_t n_tokens) const;
    void    begin_batch();
    void    begin_part(const batch_part & part);
    void    add_tree(const batch_part & part);
    void    add_chain(const batch_part & part, bool has_snapshots);
    void    add_media(const batch_part & part);
    int32_t decode_rows();
    void    run();

    llama_context * ctx_;
    feature_tap *   tap_;
    target_memory   memory_;
    int32_t         n_vocab_;
    int32_t         n_batch_;
    int32_t         n_embd_; // of rows that go in
    int32_t         n_ubatch_;

    target_batch batch_; // the last one
    bool         is_decoded_  = false;
    int64_t      n_batches_   = 0;
    int64_t      t_decode_us_ = 0;

    row_sampler   sampler_;
    device_argmax argmax_;
    bool          argmax_used_ = false; // by the last decode
    bool          is_remote_   = false;
};

} // namespace eagle3
