#pragma once

#include "llama.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace eagle3 {

// how the memory of a context gets rid of rejected tokens
enum class rollback_kind {
    trim,       // attention: remove positions
    snapshots,  // recurrent, n_rs_seq > 0: llama.cpp keeps the states after the last tokens of a batch; where these do
                // not reach, as checkpoint
    checkpoint, // recurrent: save the state before the batch, restore it after a rejection
};

const char * to_string(rollback_kind kind);

// What of a sequence cannot be cut at any position, as it was when it had n_past positions: recurrent states, the cells
// of sliding windows
struct saved_state {
    int32_t              n_past = 0; // without a replay
    std::vector<uint8_t> data;
};

using saved_state_ptr = std::shared_ptr<const saved_state>;

// Gives so many bytes to write to, all of which are written. A conversation has hundreds of MiB: none is copied twice
using allocator = std::function<uint8_t *(size_t)>;

// Takes tokens of one sequence back: begin(), decode, commit(). Also knows what truncate() needs to go back further:
// saved states, which belong to whoever keeps them. Those that are gone are not gone back to.
//
// A checkpoint that is restored loses the accepted tokens of the batch together with the rejected ones. They become the
// replay: tokens that are accepted but not in the memory, and that go in front of the next batch, so that there is
// never a pass for them alone. Positions count them as if they were there.
class seq_rollback {
  public:
    seq_rollback(llama_context * ctx, llama_seq_id seq_id);

    rollback_kind kind() const { return kind_; }

    // bytes of one saved state of this sequence as it is now; 0 where nothing has to be saved
    size_t n_state_bytes() const;

    // where the sequence ends, the replay included
    int32_t                          n_past() const { return memory_end() + static_cast<int32_t>(replay_.size()); }
    const std::vector<llama_token> & replay() const { return replay_; }

    // tokens of a batch that can be taken back without a replay; none: all
    std::optional<int32_t> n_snapshots() const {
        return kind_ == rollback_kind::trim ? std::nullopt : std::optional(n_rs_seq_);
    }

    bool open() const { return open_; }

    // a batch of n_tokens, not counting the replay, is about to be decoded at a position, where the sequence ends, and
    // may be taken back in parts. has_snapshots: those of this batch will be there. A batch that was left open is
    // aborted
    void begin(int32_t n_tokens, llama_pos pos, bool has_snapshots);

    // tokens, the replay in front, are in the memory now
    void decoded(const std::vector<llama_token> & tokens);

    // keep the first n_accepted tokens of the batch
    void commit(int32_t n_accepted);

    // the state before begin(); if it was not saved, since snapshots bring back all of the batch but its first token,
    // the last one that save() kept, or nothing at all
    void abort();

    // A batch that begins at this position, the replay included, has failed: take back what is in the memory of it. The
    // state before begin(), or, where that is lost, nothing at all
    void failed(llama_pos first);

    // keep the first n_past positions. Returns the position from which tokens must be decoded again: n_past, or less if
    // the memory cannot go back there but to a saved state, or to the beginning
    int32_t truncate(int32_t n_past);

    // The present state, for truncate(); null where there is none, and for memories that can be trimmed anywhere
    saved_state_ptr save();

    // also know these states, which were saved of the same tokens in another sequence or before this one was loaded
    void attach(const std::vector<saved_state_ptr> & states);

    // the last state at this position or before it; null: none is left
    saved_state_ptr last_saved(int32_t n_past) const;

    // the sequence holds what another one does up to this state, and shares its cells; false: it is empty now
    bool continue_from(const saved_state_ptr & state);

    // the least position that is not 0, and that the memory can go back to without a saved state
    int32_t n_past_min() const;

    // whether the memory can go back there without a saved state
    bool can_trim(int32_t n_past) const;

    // All that the sequence holds: its memory and the replay, not the saved states. state_set() is for an empty
    // sequence and throws context_full_error if there is no room, std::invalid_argument for bytes that are no such
    // state
    void state_get(const allocator & allocate);
    void state_set(const uint8_t * src, size_t size);

    // other sequences' states were gathered where this one's snapshots were, or it is not known what was decoded
    void drop_snapshots() {
        n_back_    = 0;
        is_before_ = false;
    }

  private:
    int32_t memory_end() const { return llama_memory_seq_pos_max(llama_get_memory(ctx_), seq_id_) + 1; }
    bool    trim(int32_t n_past);
    size_t  n_bytes(uint32_t flags) const; // of the memory
    void    store(saved_state & state, uint32_t flags);
    void    store(uint8_t * dst, size_t size, uint32_t flags);
    bool    restore(const saved_state & state, uint32_t flags) {
        return restore(state.n_past, state.data.data(), state.data.size(), flags);
    }
    bool restore(int32_t n_past, const uint8_t * src, size_t size, uint32_t flags);
    void clear_memory();
    void reset();

    llama_context * ctx_;
    llama_seq_id    seq_id_;
    rollback_kind   kind_;
    int32_t         n_swa_;
    int32_t         n_rs_seq_;
    uint32_t        batch_flags_; // of the state that begin() saves

    std::vector<llama_token> replay_;
    int32_t                  n_back_ = 0; // how many tokens snapshots can take back now

    // the open batch
    bool                     open_     = false;
    int32_t                  n_past_   = 0; // where its batch begins, after the replay
    int32_t                  n_tokens_ = 0; // of the batch, once it is decoded
    std::vector<llama_token> batch_;        // the same, the replay in front
    saved_state              before_;
    bool                     has_before_ = false; // it was saved for this batch
    bool                     is_before_  = false; // the memory is what was saved last

    std::vector<std::weak_ptr<const saved_state>> saved_; // for truncate(), the latest last
};

} // namespace eagle3
