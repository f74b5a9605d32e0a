#pragma once

#include "llama.h"

#include <cstdint>
#include <vector>

namespace eagle3 {

// Samples tokens from rows of n_vocab logits with llama.cpp's samplers, which accept the token. Throws logits_error for
// logits that are NaN.
class row_sampler {
  public:
    explicit row_sampler(int32_t n_vocab) : n_vocab_(n_vocab) {}

    // n_best > 0: the sampler gets only so many of the best tokens, as its first link is top-k, so that the others take
    // no time. A grammar is slow: it is applied to the token that was drawn, and only if it refuses that one, to all
    // tokens, of which another one is drawn.
    llama_token sample(llama_sampler * smpl, const float * logits, int32_t n_best, llama_sampler * grammar);

    // The candidates that the last sample() drew from, the most probable first; none if its sampler is greedy.
    std::vector<llama_token_data> probs() const;

  private:
    void        set_candidates(const float * logits);
    llama_token select(llama_sampler * smpl);

    int32_t                       n_vocab_;
    std::vector<llama_token_data> candidates_;
};

// Throws logits_error.
[[noreturn]] void throw_no_numbers();

} // namespace eagle3
