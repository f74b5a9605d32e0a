#pragma once

#include "drafters/eagle3/device.h"
#include "drafters/eagle3/head.h"
#include "llama.h"

#include <cstdint>
#include <vector>

namespace eagle3 {

// The head's K/V cache. Slot p of a sequence holds, in every layer, the pair (token at p + 1, hidden row at p), so a
// slot's index is its RoPE position and no slot is searched for. The drafter knows which slots are valid.
//
// One tensor per layer for K and one for V serves all sequences. Each sequence owns an extent of rows:
//
//   | seq 2 | seq 5 |   free    |   seq 0   |   seq 1   |           slot p of seq 0 is row base + p
//
// A sequence whose extent becomes too short moves to a free one. If none is long enough, or if most of the rows are
// free, new tensors are made that are just long enough for what is held. Extents of one length then lie side by side,
// so that one attention serves all of them (see draft_stream).
class draft_cache {
  public:
    // n_ctx: positions of each sequence. After these there is room for drafted nodes, many of which share a position.
    draft_cache(const head_hparams & hparams, int32_t n_ctx, int32_t n_seq_max, ggml_type type_k, ggml_type type_v,
                const device & dev);

    static constexpr int32_t n_pad     = 256; // graphs are rebuilt only when the length passes a multiple of this
    static constexpr int32_t n_scratch = 128; // drafted nodes of a sequence that fit after its last valid slot

    int32_t n_ctx() const { return n_ctx_; }
    int32_t n_seq_max() const { return static_cast<int32_t>(extents_.size()); }

    // Requests slots 0..n - 1 of a sequence, or as many of them as it can have. provide() makes room for all that was
    // requested, and keeps what is held, also when it throws error because the device has no memory.
    void request(llama_seq_id seq_id, int32_t n);
    void provide();

    // Frees what a sequence holds.
    void release(llama_seq_id seq_id);

    // The slots that a sequence has, a multiple of n_pad.
    int32_t n_slots(llama_seq_id seq_id) const { return extents_[seq_id].size; }

    // The row of a slot in the tensors below.
    int64_t row(llama_seq_id seq_id, int32_t slot) const { return extents_[seq_id].base + slot; }

    // K and V of a layer, [n_embd_k, rows]; valid while version() is the same. MLA has one tensor for both, since V is
    // the part of K that is not rotated.
    ggml_tensor * k(int32_t il) const { return pool_.tensors[il * n_per_layer_]; }
    ggml_tensor * v(int32_t il) const { return pool_.tensors[(il + 1) * n_per_layer_ - 1]; }
    int64_t       version() const { return version_; }

    // Copies n slots from `first` on.
    void copy(llama_seq_id src, llama_seq_id dst, int32_t first, int32_t n);

    // The raw bytes of n slots from `first` on, for saved states.
    size_t state_size(int32_t n) const;
    void   state_get(llama_seq_id seq_id, int32_t first, int32_t n, uint8_t * dst) const;
    void   state_set(llama_seq_id seq_id, int32_t first, int32_t n, const uint8_t * src);

    size_t n_bytes() const { return ggml_backend_buffer_get_size(pool_.buffer.get()); } // as of now

  private:
    static constexpr int32_t n_keep  = 2 * n_pad;  // slots that a sequence keeps although it holds nothing
    static constexpr int32_t n_loose = 16 * n_pad; // free rows for which tensors are never made anew

    struct extent {
        int64_t base     = 0;
        int32_t size     = 0;
        int32_t n_needed = 0; // slots, as last requested: those that hold something are among them
    };

    struct pool {
        context_ptr                ctx;
        buffer_ptr                 buffer;
        int64_t                    n_rows = 0;
        std::vector<ggml_tensor *> tensors; // K and V of a layer, then those of the next one
    };

    int32_t size_for(const extent & e) const;
    bool    is_loose() const;
    pool    make_pool(int64_t n_rows) const;
    bool    rebuild();
    bool    move_to_free(extent & e);
    void    clear(int64_t row, int32_t n);

    int32_t             n_ctx_;
    const device &      dev_;
    int32_t             n_embd_k_;
    int32_t             n_layer_;
    int32_t             n_per_layer_; // tensors
    ggml_type           type_k_, type_v_;
    pool                pool_;
    int64_t             version_ = 0;
    std::vector<extent> extents_; // by sequence
    std::vector<extent> free_;
};

inline int32_t pad(int32_t n, int32_t to) {
    return (n + to - 1) / to * to;
}

} // namespace eagle3
