#pragma once

#include "drafter/sequences.h"
#include "drafters/eagle3/cache.h"
#include "drafters/eagle3/rope_positions.h"
#include "drafters/eagle3/weights.h"

#include <cstdint>
#include <functional>
#include <vector>

namespace eagle3 {

// The memory of an EAGLE-3 head's sequences: rows that wait, K/V, and positions of images.
class draft_memory {
  public:
    // n_vocab: tokens of the target. on_change: called after the arguments of one of the last methods were checked, and
    // before anything that a sequence holds changes.
    draft_memory(const head_hparams & hparams, const head_weights & weights, int32_t n_vocab, int32_t n_ctx,
                 int32_t n_seq_max, ggml_type type_k, ggml_type type_v, const device & dev,
                 std::function<void()> on_change);

    int32_t n_ctx() const { return cache_.n_ctx(); }
    int32_t n_seq_max() const { return cache_.n_seq_max(); }

    // Throws std::invalid_argument if there is no such sequence.
    const draft_sequence & sequence(llama_seq_id seq_id) const { return sequences_[seq_id]; }
    draft_sequence &       sequence(llama_seq_id seq_id) { return sequences_[seq_id]; }

    const draft_sequences & sequences() const { return sequences_; }
    draft_sequences &       sequences() { return sequences_; }

    const draft_cache &                 cache() const { return cache_; }
    const std::vector<rope_positions> & positions() const { return positions_; } // by sequence

    // Requests slots < n of a sequence, and some after them for drafted nodes; provide() makes room for all that was
    // requested (see draft_cache).
    void request(llama_seq_id seq_id, int32_t n) { cache_.request(seq_id, n + draft_cache::n_scratch); }
    void provide() { cache_.provide(); }

    // These do what drafter's methods of the same names do.
    void                 add_image(int32_t first, int32_t n_pos, const std::vector<int32_t> & pos, llama_seq_id seq_id);
    int32_t              truncate(int32_t n_past, llama_seq_id seq_id, bool same_next);
    int32_t              copy(llama_seq_id src, llama_seq_id dst, int32_t n_past, bool same_next);
    void                 restart(int32_t n_past, llama_seq_id seq_id);
    std::vector<uint8_t> state_get(llama_seq_id seq_id) const;
    void                 state_set(const std::vector<uint8_t> & state, llama_seq_id seq_id);

  private:
    const head_hparams &        hparams_;
    const head_weights &        weights_;
    std::function<void()>       on_change_;
    draft_cache                 cache_;
    draft_sequences             sequences_;
    std::vector<rope_positions> positions_;
};

} // namespace eagle3
