#pragma once

#include "llama.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace eagle3 {

// How rejected tokens are removed from a context's memory.
enum class rollback_kind {
    trim,       // attention: positions are removed
    snapshots,  // recurrent, n_rs_seq > 0: llama.cpp keeps the states after the last tokens of a batch; for tokens
                // before these as `checkpoint`
    checkpoint, // recurrent: the state is saved before the batch, and restored after a rejection
};

const char * to_string(rollback_kind kind);

// The part of a sequence that cannot be cut at any position, as it was after n_past positions: recurrent states, and
// the cells of sliding windows.
struct saved_state {
    int32_t              n_past = 0; // without a replay
    std::vector<uint8_t> data;
};

using saved_state_ptr = std::shared_ptr<const saved_state>;

// Returns memory of a size, all of which is written. A conversation has hundreds of MiB, which must not be copied
// twice.
using allocator = std::function<uint8_t *(size_t)>;

// Takes back tokens of one sequence: begin(), decode, commit(). To go back further, truncate() needs saved states. They
// belong to the caller, and only those that still exist are used.
//
// Restoring a checkpoint loses the accepted tokens of the batch together with the rejected ones. They become the
// replay: accepted tokens that are not in the memory and are put before the next batch, so that no pass is for them
// alone. Positions count them as if they were in the memory.
class seq_rollback {
  public:
    seq_rollback(llama_context * ctx, llama_seq_id seq_id);

    rollback_kind kind() const { return kind_; }

    // The bytes of a saved state of this sequence as it is now; 0 if nothing has to be saved.
    size_t n_state_bytes() const;

    // Where the sequence ends, the replay included.
    int32_t                          n_past() const { return memory_end() + static_cast<int32_t>(replay_.size()); }
    const std::vector<llama_token> & replay() const { return replay_; }

    // How many tokens of a batch can be taken back without a replay; none: all.
    std::optional<int32_t> n_snapshots() const {
        return kind_ == rollback_kind::trim ? std::nullopt : std::optional(n_rs_seq_);
    }

    bool open() const { return open_; }

    // Opens a batch of n_tokens besides the replay, to be decoded at position pos, where the sequence ends, and to be
    // taken back in part. has_snapshots: whether the batch will leave its snapshots. Aborts a batch that was left open.
    void begin(int32_t n_tokens, llama_pos pos, bool has_snapshots);

    // Tells that tokens, the replay first, are in the memory now.
    void decoded(const std::vector<llama_token> & tokens);

    // Keeps the first n_accepted tokens of the batch.
    void commit(int32_t n_accepted);

    // Goes back to the state before begin(). If that was not saved, since snapshots take back all tokens of a batch but
    // its first one, goes back to the last state that save() returned, or to the beginning.
    void abort();

    // Takes back a batch that failed and that began at this position, the replay included: goes back to the state
    // before begin(), or, if that is lost, to the beginning.
    void failed(llama_pos first);

    // Keeps the first n_past positions. Returns the position from which tokens must be decoded again: n_past, or less
    // if the memory can only go back to a saved state, or to the beginning.
    int32_t truncate(int32_t n_past);

    // The present state, for truncate(); null if there is none, or if the memory can be trimmed anywhere.
    saved_state_ptr save();

    // Lets truncate() use these states too, which were saved of the same tokens in another sequence, or before this one
    // was loaded.
    void attach(const std::vector<saved_state_ptr> & states);

    // The last saved state at this position or before it; null if none is left.
    saved_state_ptr last_saved(int32_t n_past) const;

    // Tells that the sequence shares another one's cells, and lets it go on from this state. False: it is empty now.
    bool continue_from(const saved_state_ptr & state);

    // The least position, besides 0, to which the memory can go back without a saved state.
    int32_t n_past_min() const;

    // Can the memory go back there without a saved state?
    bool can_trim(int32_t n_past) const;

    // The whole sequence: its memory and the replay, not the saved states. state_set() needs an empty sequence; it
    // throws context_full_error if there is no room, and std::invalid_argument for bytes that are not such a state.
    void state_get(const allocator & allocate);
    void state_set(const uint8_t * src, size_t size);

    // Forgets the snapshots: other sequences' states were moved there, or it is not known what was decoded.
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
    std::vector<llama_token> batch_;        // its tokens, the replay first
    saved_state              before_;
    bool                     has_before_ = false; // the state before it was saved
    bool                     is_before_  = false; // the memory is in the state that was saved last

    std::vector<std::weak_ptr<const saved_state>> saved_; // for truncate(), the latest last
};

} // namespace eagle3
