#pragma once

#include "draft/device.h"
#include "draft/head.h"

#include <cstdint>
#include <vector>

namespace eagle3 {

// The head's K/V cache: slot p of every layer holds the pair (token at p + 1, hidden row at p), so a slot's index is
// its RoPE position and nothing has to be searched. Which slots are valid is the drafter's business.
class draft_cache {
  public:
    // n_ctx slots are there; tensors have n_slots >= n_ctx rows so that graphs can be built for padded lengths
    draft_cache(const head_hparams & hparams, int32_t n_ctx, ggml_type type_k, ggml_type type_v, const device & dev);

    static constexpr int32_t n_pad = 256; // graphs are rebuilt only when the length passes a multiple of this

    int32_t n_ctx() const { return n_ctx_; }

    // K and V of a layer, [n_embd_k, n_slots]
    ggml_tensor * k(int32_t il) const { return k_[il]; }
    ggml_tensor * v(int32_t il) const { return v_[il]; }

    // raw bytes of the first n slots, for saved states
    size_t state_size(int32_t n) const;
    void   state_get(int32_t n, uint8_t * dst) const;
    void   state_set(int32_t n, const uint8_t * src);

    size_t n_bytes() const;

  private:
    int32_t     n_ctx_;
    context_ptr ctx_;
    buffer_ptr  buffer_;

    std::vector<ggml_tensor *> k_, v_;
};

} // namespace eagle3
