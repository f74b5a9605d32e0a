#pragma once

#include "llama.h"

#include <cstdint>
#include <vector>

namespace eagle3 {

// Sequence ids after those of the caller. Each shares the cells of a prefix of one of the caller's sequences, its
// owner. The first n_guards of them guard windows (see guard), the others are for the leaves of drafted trees.
class leaf_pool {
  public:
    // n_seq: the caller's ids among the context's n_seq_max. n_guards: 0 or n_seq.
    leaf_pool(llama_context * ctx, int32_t n_seq, int32_t n_guards);

    int32_t n_leaves() const { return n_seq_max_ - first_leaf(); }
    int32_t n_free() const;

    // Takes an id that shares the owner's positions < end, until release() or abandon(). One must be free.
    llama_seq_id take(llama_seq_id owner, llama_pos end);

    // Frees the owner's ids, which share only positions < end from now on.
    void release(llama_seq_id owner, llama_pos end);

    // Frees an id whose cells the caller has removed.
    void abandon(llama_seq_id id) { loans_[static_cast<size_t>(id)].is_taken = false; }

    // Lets the owner's guard share its positions < end. In a pool of cells llama.cpp reuses cells that have left their
    // sequence's window, even while others are empty, unless two sequences own them. Without a guard the sequence could
    // not be cut to a position whose window reaches back to them.
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
