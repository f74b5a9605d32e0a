#pragma once

#include "target/batch_part.h"
#include "target/leaf_pool.h"
#include "target/rollback.h"
#include "target/token_positions.h"

#include "llama.h"

#include <cstdint>
#include <vector>

namespace eagle3 {

// What the sequences of a target's context hold, and going back in them. n_past counts tokens, rows of images included,
// whatever positions they have (see token_positions). Methods throw error once close() was called.
//
// Trees. The nodes of a drafted tree belong to the sequences of all leaves below them, in a cache that the sequences
// share. Leaf 0 is the sequence itself, the others are ids of the leaf_pool, which share its prefix. Of sequence 0 in a
// context with the ids 8 and 9 in the pool:
//
//   sequence 0   prefix  root  a  b        leaf 0 = b
//   sequence 8   prefix  root  a  c        leaf 1 = c: shares root and a with leaf 0
//   sequence 9   prefix  root  d           leaf 2 = d
class target_memory {
  public:
    // n_seq: sequences 0..n_seq - 1 are the caller's, the other ids of the context are for the leaf_pool; 0 = all are
    // the caller's
    target_memory(llama_context * ctx, int32_t n_seq, int32_t n_guards);

    void close() { ctx_ = nullptr; }

    void check_open() const;
    void check_seq(llama_seq_id seq_id) const;

    rollback_kind kind() const { return rollbacks_[0].kind(); }
    int32_t       n_seqs() const { return n_seq_; }
    int32_t       n_ctx_seq() const { return n_ctx_; }
    bool          is_pooled() const { return is_pooled_; }       // cells are shared by all sequences
    bool          has_sections() const { return has_sections_; } // M-RoPE: images leave gaps between positions

    // leaves that a tree may have if no other sequence drafts one; 1 where only chains can be verified
    int32_t n_leaves_max() const { return can_share_ ? 1 + leaves_.n_leaves() : 1; }
    int32_t n_leaves_free() const { return leaves_.n_free(); }

    // going back in one sequence, by positions
    seq_rollback &       rollback(llama_seq_id seq_id);
    const seq_rollback & rollback(llama_seq_id seq_id) const;

    // tokens that a sequence holds, those of a replay included
    int32_t n_past(llama_seq_id seq_id) const;

    // position of the token that comes after the first n_past ones
    llama_pos position(llama_seq_id seq_id, int32_t n_past) const;

    // keep the first n_past tokens of a sequence. Returns how many it holds then, the others must be decoded again:
    // n_past, or less where the memory cannot go back there, such as into an image
    int32_t truncate(int32_t n_past, llama_seq_id seq_id);

    // Have dst hold the first n_past tokens of src, which stays as it is, and nothing else; they share the cells.
    // Returns how many it holds: n_past, or where an image begins that it is inside of, or those before the last saved
    // state where the memory cannot be cut there, or 0 without one and for caches of their own
    int32_t copy(llama_seq_id src, llama_seq_id dst, int32_t n_past);

    // see seq_rollback: in tokens
    int32_t n_past_min(llama_seq_id seq_id) const;

    // Images in a sequence. set_spans() is for a sequence whose cells were written by other means
    const std::vector<media_span> & spans(llama_seq_id seq_id) const;
    void                            set_spans(llama_seq_id seq_id, std::vector<media_span> spans);

    // all that a sequence holds, but not what it can go back to. state_set throws context_full_error if there is no
    // room: the sequence is empty then
    void state_get(llama_seq_id seq_id, const allocator & allocate);
    void state_set(llama_seq_id seq_id, const uint8_t * src, size_t size);

    // Remove all sequences, and clear the cells too. What a damaged state left in cells may be NaN, and masked cells
    // take part in products with zero
    void clear();

    // whether a draft was decoded of which no path was kept yet
    bool has_draft(llama_seq_id seq_id) const;

    // after a part that is a draft or a tree: accept the path through these of its rows, the first one first, and
    // remove the other tokens. Rows count from the part's first one; those of a chain are 0, 1, 2, ...
    void accept(llama_seq_id seq_id, const std::vector<int32_t> & path);

    // The rest is for decoding, which target does.

    // Of each sequence id: whether a batch of these parts, replays in front, may leave it without its snapshots (see
    // snapshot_moves). Empty: it leaves none behind
    std::vector<bool> snapshots_lost(const std::vector<batch_part> & parts) const;

    // a drafted chain comes next, at n_past; or a tree. Leaves that the tree needs must be free. has_snapshots: those
    // of its batch will be there
    void open_chain(llama_seq_id seq_id, int32_t n_past, int32_t n_tokens, bool has_snapshots);

    struct tree_node {
        llama_pos            pos;
        const llama_seq_id * seq_ids; // of the leaves below it; valid until the next tree
        int32_t              n_seq_ids;
    };
    std::vector<tree_node> open_tree(llama_seq_id seq_id, int32_t n_past, const std::vector<int32_t> & parents);

    // the sequence holds a piece of an image now, which was decoded after its first n_past tokens
    void add_media(llama_seq_id seq_id, int32_t n_past, int32_t n_tokens, const media_piece & media);

    // have the guards hold what may leave the windows of the sequences in this pass
    void guard_windows();

    // the leaves of a sequence share nothing any more
    void release_leaves(llama_seq_id seq_id) { leaves_.release(seq_id, 0); }

    // Some ubatches of a batch may have been added to a sequence, or to a leaf, from this position on: take them back.
    // An open batch is aborted; what cannot go back is removed altogether
    void take_back(llama_seq_id id, llama_pos first);

    // drop the snapshots of these sequences; or all of them
    void drop_snapshots(const std::vector<bool> & lost);
    void drop_snapshots();

  private:
    // a draft that was decoded
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
