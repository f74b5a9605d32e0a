#pragma once

#include "llama.h"

#include <cstdint>
#include <vector>

namespace eagle3 {

// Sequence ids after those of the caller, each of which shares the cells of a prefix of one caller's sequence, its
// owner. The first n_guards of them guard windows (see there), the others are for the leaves of drafted trees.
class leaf_pool {
  public:
    // n_seq: ids of the caller, of the n_seq_max of the context. n_guards: 0 or n_seq
    leaf_pool(llama_context * ctx, int32_t n_seq, int32_t n_guards);

    int32_t n_leaves() const { return n_seq_max_ - first_leaf(); }
    int32_t n_free() const;

    // an id that shares the owner's positions < end; one must be free. It stays taken until release() or abandon()
    llama_seq_id take(llama_seq_id owner, llama_pos end);

    // free the owner's ids, which share only positions < end from now on
    void release(llama_seq_id owner, llama_pos end);

    // free an id whose cells the caller has removed
    void abandon(llama_seq_id id) { loans_[static_cast<size_t>(id)].is_taken = false; }

    // Have the owner's guard share its positions < end. In a pool of cells llama.cpp gives cells that have left their
    // sequence's window to others, even while there are empty ones, unless two sequences have them: then the sequence
    // could not be truncated to a position whose window reaches there.
    void guard(llama_seq_id owner, llama_pos end);

  private:
    struct loan {
        llama_seq_id owner    = -1;
        llama_pos    end      = 0; // positions < end are shared
        bool         is_taken = false;
    };

    llama_seq_id first_leaf() const { return n_seq_ + n_guards_; }
    void         share(llama_seq_id id, llama_pos end);

    llama_context *   ctx_;
    int32_t           n_seq_;
    int32_t           n_guards_;
    int32_t           n_seq_max_;
    std::vector<loan> loans_; // by sequence id
};

} // namespace eagle3
