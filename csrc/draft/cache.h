#pragma once

#include "draft/device.h"
#include "draft/head.h"
#include "llama.h"

#include <cstdint>
#include <vector>

namespace eagle3 {

// The head's K/V cache. Every sequence has a stream of n_slots slots: slot p of every layer holds the pair (token at
// p + 1, hidden row at p), so a slot's index is its RoPE position and nothing has to be searched. Which slots are valid
// is the drafter's business. Behind n_ctx there is room for drafted nodes, of which many share a position.
class draft_cache {
  public:
    draft_cache(const head_hparams & hparams, int32_t n_ctx, int32_t n_seq_max, ggml_type type_k, ggml_type type_v,
                const device & dev);

    static constexpr int32_t n_pad     = 256; // graphs are rebuilt only when the length passes a multiple of this
    static constexpr int32_t n_scratch = 128; // drafted nodes of a sequence that fit behind its last valid slot

    int32_t n_ctx() const { return n_ctx_; }
    int32_t n_seq_max() const { return n_seq_max_; }

    // of one sequence, a multiple of n_pad
    int32_t n_slots() const { return n_slots_; }

    // row of the tensors below
    int64_t row(llama_seq_id seq_id, int32_t slot) const { return static_cast<int64_t>(seq_id) * n_slots_ + slot; }

    // K and V of a layer, [n_embd_k, n_slots * n_seq_max]
    ggml_tensor * k(int32_t il) const { return k_[il]; }
    ggml_tensor * v(int32_t il) const { return v_[il]; }

    // raw bytes of n slots from the first one on, for saved states
    size_t state_size(int32_t n) const;
    void   state_get(llama_seq_id seq_id, int32_t first, int32_t n, uint8_t * dst) const;
    void   state_set(llama_seq_id seq_id, int32_t first, int32_t n, const uint8_t * src);

    size_t n_bytes() const;

  private:
    int32_t     n_ctx_, n_seq_max_, n_slots_;
    context_ptr ctx_;
    buffer_ptr  buffer_;

    std::vector<ggml_tensor *> k_, v_;
};

inline int32_t pad(int32_t n, int32_t to) {
    return (n + to - 1) / to * to;
}

} // namespace eagle3
