#pragma once

#include "llama.h"

#include <cstdint>
#include <vector>

namespace eagle3 {

// Are the logits computed on a device whose memory the host cannot read?
bool logits_are_remote(const llama_model * model);

// Lets the device that computes the logits take their argmax, by llama.cpp's backend sampling: one token id per row
// comes back instead of n_vocab floats. Built on a sampler of our own, since llama.cpp's greedy one has the rows
// fetched all the same.
//
// Of several greatest logits a device takes any. Which index a device takes of a row of NaN is its own business: so one
// number that is less than any logit stands in front of the row, and no index of the row itself is taken for NaN. While
// it is attached, logits cannot be read; attaching and detaching make llama.cpp reserve its graphs again with the next
// decode, which takes milliseconds.
class device_argmax {
  public:
    device_argmax() = default;
    ~device_argmax() { free_chains(); }

    device_argmax(const device_argmax &)             = delete;
    device_argmax & operator=(const device_argmax &) = delete;

    // for all sequences of the context, each with at most n_outputs rows in a batch, for which the context must have
    // been made (llama_context_params.n_outputs_max_per_seq)
    void attach(llama_context * ctx, int32_t n_outputs);
    void detach(llama_context * ctx);

    // the token at a batch index of the last decode; -1: the row is NaN
    static llama_token get(llama_context * ctx, int32_t i) { return llama_get_sampled_token_ith(ctx, i) - 1; }

    bool    is_attached() const { return !chains.empty(); }
    int32_t n_outputs_max() const { return n_outputs; }

  private:
    void free_chains();

    std::vector<llama_sampler *> chains; // by sequence
    int32_t                      n_outputs = 0;
};

} // namespace eagle3
