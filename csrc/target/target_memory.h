#pragma once

#include "target/batch_part.h"
#include "target/leaf_pool.h"
#include "target/rollback.h"
#include "target/token_positions.h"

#include "llama.h"

#include <cstdint>
#include <vector>

namespace eagle3 {

// The contents of the sequences of a target's context, and going back in them. n_past counts tokens and rows of images,
// whatever positions they have (see token_positions). Methods throw error once close() was called.
//
// Trees. A node of a drafted tree belongs to the sequences of all leaves below it, in a cache that sequences share.
// Leaf 0 is the sequence itself, the others are ids of the leaf_pool, which share its prefix. For example, a tree of
// sequence 0 with the ids 8 and 9 of the pool:
//
//   sequence 0   prefix  root  a  b        leaf 0 = b
//   sequence 8   prefix  root  a  c        leaf 1 = c: shares root and a with leaf 0
//   sequence 9   prefix  root  d           leaf 2 = d
class target_memory {
  public:
    // n_seq: sequences 0..n_seq - 1 are the caller's, and the context's other ids are for the leaf_pool; 0 = all are
    // the caller's.
    target_memory(llama_context * ctx, int32_t n_seq, int32_t n_guards);

    void close() { ctx_ = nullptr; }

    void check_open() const;
    void check_seq(llama_seq_id seq_id) const;

    rollback_kind kind() const { return rollbacks_[0].kind(); }
    int32_t       n_seqs() const { return n_seq_; }
    int32_t       n_ctx_seq() const { return n_ctx_; }
    bool          is_pooled() const { return is_pooled_; }       // cells are shared by all sequences
    bool          has_sections() const { return has_sections_; } // M-RoPE: images leave gaps between positions

    // Most leaves of a tree if no other sequence has one; 1 if only chains can be verified.
    int32_t n_leaves_max() const { return can_share_ ? 1 + leaves_.n_leaves() : 1; }
    int32_t n_leaves_free() const { return leaves_.n_free(); }

    // Goes back in one sequence, by positions.
    seq_rollback &       rollback(llama_seq_id seq_id);
    const seq_rollback & rollback(llama_seq_id seq_id) const;

    // The number of tokens that a sequence holds, a replay included.
    int32_t n_past(llama_seq_id seq_id) const;

    // The position of the token after the first n_past ones.
    llama_pos position(llama_seq_id seq_id, int32_t n_past) const;

    // Keeps the first n_past tokens of a sequence. Returns how many it holds then: n_past, or less if the memory cannot
    // go back there, such as into an image. The others must be decoded again.
    int32_t truncate(int32_t n_past, llama_seq_id seq_id);

    // Makes dst hold only the first n_past tokens of src, which is not changed; they share the cells. Returns how many
    // dst holds. That is less than n_past inside of an image, where it begins; if the memory cannot be cut there, at
    // the last saved state, or 0 without one; and 0 if sequences have caches of their own.
    int32_t copy(llama_seq_id src, llama_seq_id dst, int32_t n_past);

    // As seq_rollback::n_past_min, in tokens.
    int32_t n_past_min(llama_seq_id seq_id) const;

    // The images in a sequence. set_spans() is for a sequence whose cells were written by other means.
    const std::vector<media_span> & spans(llama_seq_id seq_id) const;
    void                            set_spans(llama_seq_id seq_id, std::vector<media_span> spans);

    // Everything that a sequence holds, but not the states that it can go back to. state_set throws context_full_error
    // if there is no room; the sequence is empty then.
    void state_get(llama_seq_id seq_id, const allocator & allocate);
    void state_set(llama_seq_id seq_id, const uint8_t * src, size_t size);

    // Removes all sequences, and zeroes the cells too: a damaged state may have left NaN there, and masked cells are
    // still multiplied by zero.
    void clear();

    // Was a draft decoded for which accept() was not called yet?
    bool has_draft(llama_seq_id seq_id) const;

    // Must be called after a part that is a draft or a tree: keeps the path through these of its rows, in order, and
    // removes the other tokens. Rows count from the part's first one; those of a chain are 0, 1, 2, ...
    void accept(llama_seq_id seq_id, const std::vector<int32_t> & path);

    // The rest is for decoding, which target does.

    // [sequence id]: whether a batch of these parts, replays first, may leave it without its snapshots (see
    // snapshot_moves). Empty: none loses them.
    std::vector<bool> snapshots_lost(const std::vector<batch_part> & parts) const;

    // Tell that a drafted chain comes next, at n_past, or a tree, for whose leaves enough ids must be free.
    // has_snapshots: whether the batch will leave its snapshots.
    void open_chain(llama_seq_id seq_id, int32_t n_past, int32_t n_tokens, bool has_snapshots);

    struct tree_node {
        llama_pos            pos;
        const llama_seq_id * seq_ids; // of the leaves below it; valid until the next tree
        int32_t              n_seq_ids;
    };
    std::vector<tree_node> open_tree(llama_seq_id seq_id, int32_t n_past, const std::vector<int32_t> & parents);

    // Tells that a piece of an image was decoded after the sequence's first n_past tokens.
    void add_media(llama_seq_id seq_id, int32_t n_past, int32_t n_tokens, const media_piece & media);

    // Lets the guards hold the cells that may leave the sequences' windows in this pass.
    void guard_windows();

    // Lets the leaves of a sequence share nothing any more.
    void release_leaves(llama_seq_id seq_id) { leaves_.release(seq_id, 0); }

    // Takes back ubatches of a failed batch that may have been added to a sequence, or to a leaf, from this position
    // on. Aborts an open batch; a sequence that cannot go back becomes empty.
    void take_back(llama_seq_id id, llama_pos first);

    // Drops the snapshots of these sequences; without an argument, of all.
    void drop_snapshots(const std::vector<bool> & lost);
    void drop_snapshots();

  private:
    // A draft that was decoded.
    struct open_draft {
        llama_pos                 pos      = 0; // of its first token
        int32_t                   n_tokens = 0; // 0 = there is none
        std::vector<int32_t>      parents;      // empty: a chain
        std::vector<llama_seq_id> leaf;         // the first leaf below each node of a tree
    };

    void sync_positions(llama_seq_id id);

    llama_context * ctx_; // null: closed
    int32_t         n_ctx_;
    int32_t         n_seq_max_;
    int32_t         n_seq_;
    int32_t         n_guards_;
    bool            is_pooled_;
    bool            has_sections_;
    leaf_pool       leaves_;

    // by sequence id
    std::vector<seq_rollback>    rollbacks_;
    std::vector<token_positions> positions_;
    std::vector<open_draft>      drafts_;

    bool                      can_share_;   // cells
    std::vector<llama_seq_id> tree_leaves_; // of the last tree
};

} // namespace eagle3
