#pragma once

#include "llama.h"

#include <cstdint>
#include <vector>

namespace eagle3 {

// Are the logits computed on a device whose memory the host cannot read?
bool logits_are_remote(const llama_model * model);

// Lets the device that computes the logits take their argmax, by llama.cpp's backend sampling: one token id per row
// comes back instead of n_vocab floats. It uses a sampler of our own, since llama.cpp's greedy one fetches the rows
// too.
//
// Of several greatest logits a device takes any one. Which index it takes of a row of NaN is not defined: so a number
// that is less than any logit is put before the row, and only its index stands for NaN. While this is attached, logits
// cannot be read. After attaching or detaching, llama.cpp reserves its graphs again at the next decode, which takes
// milliseconds.
class device_argmax {
  public:
    device_argmax() = default;
    ~device_argmax() { free_chains(); }

    device_argmax(const device_argmax &)             = delete;
    device_argmax & operator=(const device_argmax &) = delete;

    // Attaches it to all sequences of the context. n_outputs: most rows of a sequence in a batch, for which the context
    // must have been made (llama_context_params.n_outputs_max_per_seq).
    void attach(llama_context * ctx, int32_t n_outputs);
    void detach(llama_context * ctx);

    // The token at a batch index of the last decode; -1: the row is NaN.
    static llama_token get(llama_context * ctx, int32_t i) { return llama_get_sampled_token_ith(ctx, i) - 1; }

    bool    is_attached() const { return !chains.empty(); }
    int32_t n_outputs_max() const { return n_outputs; }

  private:
    void free_chains();

    std::vector<llama_sampler *> chains; // by sequence
    int32_t                      n_outputs = 0;
};

} // namespace eagle3
