#pragma once

#include "llama.h"

#include <cstdint>
#include <vector>

namespace eagle3 {

// Checks the arguments of a drafter's methods that name sequences, tokens and positions. Each check throws what the
// drafter's method of the same name throws. n_known: positions that the sequence has already.
class draft_limits {
  public:
    // n_vocab: tokens of the target. n_ctx: positions of each sequence.
    draft_limits(int32_t n_vocab, int32_t n_ctx, int32_t n_seq_max) :
        n_vocab_(n_vocab), n_ctx_(n_ctx), n_seq_max_(n_seq_max) {}

    int32_t n_vocab() const { return n_vocab_; }
    int32_t n_ctx() const { return n_ctx_; }
    int32_t n_seq_max() const { return n_seq_max_; }

    static constexpr int32_t n_catch_up_max = 16; // waiting rows beyond this are written before something is drafted

    bool is_token(llama_token token) const { return token >= 0 && token < n_vocab_; }

    void        check(llama_seq_id seq_id) const; // throws if there is no such sequence
    void        check_process(const llama_token * tokens, int32_t n_tokens, int32_t n_past, int32_t n_known) const;
    static void check_add_image(int32_t first, int32_t n_known);
    void        check_copy(llama_seq_id src, llama_seq_id dst, int32_t n_past, int32_t n_known) const;
    void        check_restart(int32_t n_past, llama_seq_id seq_id) const;
    void        check_begin(const std::vector<llama_seq_id> & seq_ids, const std::vector<llama_token> & ids_last) const;

  private:
    void check_token(const char * what, llama_token token) const;

    int32_t n_vocab_;
    int32_t n_ctx_;
    int32_t n_seq_max_;
};

} // namespace eagle3
