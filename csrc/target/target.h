#pragma once

#include "target/device_argmax.h"
#include "target/feature_tap.h"
#include "target/recurrent_round.h"
#include "target/token_positions.h"

#include "llama.h"

#include <cstdint>
#include <vector>

namespace eagle3 {

enum class part_logits { none, last, all };

// rows of embeddings in place of tokens that the model would look up: a piece of an image or a sound
struct media_piece {
    std::vector<float>     embd;          // [n_tokens, n_embd_inp]; empty: it is text
    std::vector<llama_pos> pos;           // M-RoPE: four of each row, [4, n_tokens]; else empty, they follow each other
    int32_t                offset = 0;    // rows of the same chunk that came before, in other batches
    int32_t                n_pos  = 0;    // M-RoPE: positions that the whole chunk takes
    bool                   causal = true; // else its rows see each other, and must be decoded together
};

// tokens of one sequence, behind its first n_past
struct batch_part {
    llama_seq_id             seq_id = 0;
    int32_t                  n_past = 0;
    std::vector<llama_token> tokens;
    // a tree: token i follows token parents[i] < i; the first one is the root, its parent is not looked at
    std::vector<int32_t>     parents  = {};
    part_logits              logits   = part_logits::last;
    bool                     is_draft = false; // keep() will say which tokens stay; so it will of every tree
    // with embeddings the tokens only stand for the rows. A batch has rows or tokens, not both
    media_piece              media    = {};
};

// The target's context, as speculative decoding needs it: decode, sample row by row, take back. Everything that could
// make llama.cpp abort is checked first. The context and the model belong to somebody else. For one thread at a time.
//
// Rows are numbered as the tokens that decode*() was given, whatever else the batch held (see recurrent_round: replay).
// n_past counts tokens, rows of images included, whatever positions they have (see token_positions).
//
// Trees. A drafted tree is decoded as a part in which a node belongs to the sequences of all leaves below it, in a
// cache that the sequences share. Leaf 0 is the sequence itself; the others are taken from a pool of sequence ids,
// borrow its prefix, and give up what was rejected. Of sequence 0 in a context with the ids 8 and 9 in the pool:
//
//   sequence 0   prefix  root  a  b        leaf 0 = b
//   sequence 8   prefix  root  a  c        leaf 1 = c: shares root and a with leaf 0
//   sequence 9   prefix  root  d           leaf 2 = d
class target {
  public:
    // tap: may be null, else it is attached here. n_seq: sequences 0..n_seq - 1 are the caller's, the other ids of the
    // context are for leaves; 0 = all are the caller's
    target(llama_context * ctx, const llama_model * model, feature_tap * tap, int32_t n_seq = 0, int32_t n_guards = 0);

    target(const target &)             = delete;
    target & operator=(const target &) = delete;

    // One llama_decode for all parts, each of another sequence: forget its tokens from n_past on and evaluate these
    // there. If it throws, every memory ends at n_past or before it.
    // n_pad: rows to add, which nobody looks at and nothing is left of: kernels that take rows by four take longer for
    // two. They come behind the parts by turns. In streams, whose parts must have the same number of rows, that number
    // may come behind other sequences instead. Where they cannot be added, for want of room say, they are not
    void decode(const std::vector<batch_part> & parts, int32_t n_pad = 0);

    // whether keep() could take back the drafts of these parts, as llama.cpp would cut their batch: snapshots of a
    // recurrent state may be left behind (see snapshot_moves)
    bool can_take_back(const std::vector<batch_part> & parts) const;

    // after a part that is a draft or a tree: keep the path through these of its rows, the first one first, and forget
    // the other tokens. Rows count from the part's first one; those of a chain are 0, 1, 2, ...
    void keep(llama_seq_id seq_id, const std::vector<int32_t> & path);

    // whether a draft was decoded of which no path was kept yet
    bool holds_draft(llama_seq_id seq_id) const;

    // the general form. Nothing is forgotten before; if it throws, what the batch had added is taken back
    void decode_batch(const std::vector<llama_token> & tokens, const std::vector<llama_pos> & pos,
                      const std::vector<std::vector<llama_seq_id>> & seq_ids, const std::vector<bool> & logits);

    // row: index in the last batch; its logits must have been asked for. -1: the last row of a decode that was not ours
    llama_token   argmax(int32_t row) const; // the first of the greatest
    const float * logits(int32_t row) const;

    // let the target's device take the argmax of each row: logits() and sample() then throw, since the rows stay there.
    // n_outputs: rows with logits that a sequence may have in a batch; 0 = bring them here again
    void set_device_argmax(int32_t n_outputs);

    bool logits_are_remote() const { return is_remote; }

    // sample from a row, and let the sampler accept the token. n_best > 0: the sampler looks at that many of the best
    // tokens only (its first link is top-k), so that nothing has to be done for the others. A grammar is asked about
    // the token that was drawn, and only if it refuses that applied to all and another one drawn: it is slow
    llama_token sample(llama_sampler * smpl, int32_t row, int32_t n_best = 0, llama_sampler * grammar = nullptr);

    // sample from n_vocab() logits that somebody has changed, or whose probabilities are wanted
    llama_token sample_from(llama_sampler * smpl, const float * logits, llama_sampler * grammar = nullptr);

    // the candidates that the last sample_from() drew from, the most probable first; none if its sampler is greedy
    std::vector<llama_token_data> sampled_probs() const;

    // what a sequence can take back, and how; it knows positions
    recurrent_round & round(llama_seq_id seq_id);

    // tokens that a sequence holds, those of a replay included
    int32_t n_past(llama_seq_id seq_id) const;

    // position of the token that comes behind the first n_past ones
    llama_pos position(llama_seq_id seq_id, int32_t n_past) const;

    // positions of a row: 4 with M-RoPE, else 1
    int32_t n_pos_per_row() const { return may_leave_gaps ? 4 : 1; }
    int32_t n_embd_inp() const { return n_embd; }
    int32_t n_ubatch() const { return n_ubatch_ctx; }

    // keep the first n_past tokens of a sequence. Returns how many it holds then, those behind must be decoded again:
    // n_past, or less where the memory cannot go back there, such as into an image
    int32_t truncate(int32_t n_past, llama_seq_id seq_id = 0);

    // Have dst hold the first n_past tokens of src, which stays as it is, and nothing else; they share the cells.
    // Returns n_past, or where an image begins that it is inside of, or 0 where that cannot be: a recurrent state, a
    // window that has moved on, caches of their own
    int32_t copy(llama_seq_id src, llama_seq_id dst, int32_t n_past);

    // images in a sequence; and where they are in what somebody else has put into it
    const std::vector<media_span> & spans(llama_seq_id seq_id) const;
    void                            set_spans(llama_seq_id seq_id, std::vector<media_span> spans);

    // all that a sequence holds, and what it can go back to. state_set throws context_full_error if there is no room:
    // the sequence is empty then
    std::vector<uint8_t> state_get(llama_seq_id seq_id);
    void                 state_set(llama_seq_id seq_id, const std::vector<uint8_t> & state);

    // Forget all sequences, and clear the cells too. What a damaged state left in cells may be NaN, and masked cells
    // take part in products with zero
    void clear();

    // make the memory hold exactly the sequences' tokens: no replay, no leaves. For whoever is about to look at it
    void settle();

    // leaves that a tree may have if no other sequence drafts one; 1 where only chains can be verified
    int32_t n_leaves_max() const { return can_share ? 1 + n_seq_max - n_seq - n_guards : 1; }

    int32_t n_seqs() const { return n_seq; }
    int32_t n_ctx_seq() const { return n_ctx; }
    bool    is_pooled() const { return unified; } // cells are shared by all sequences

    // the context is about to be freed: every later call throws
    void close();

    const std::vector<llama_token> & tokens() const { return row_tokens; }
    const std::vector<llama_pos> &   pos() const { return row_pos; }
    const feature_tap *              tap() const { return tap_ptr; }
    int32_t                          n_vocab() const { return n_vocab_tgt; }
    int64_t                          n_batches() const { return batch_count; } // so far, those that failed too
    int64_t                          t_decode_us() const { return t_decode; }  // in llama_decode and synchronize

  private:
    // a draft that was decoded
    struct open_draft {
        llama_pos                 pos      = 0; // of its first token
        int32_t                   n_tokens = 0; // 0 = there is none
        std::vector<int32_t>      parents;      // empty: a chain
        std::vector<llama_seq_id> leaf;         // the first leaf below each node of a tree
    };

    // of a sequence id in the pool
    struct leaf_loan {
        llama_seq_id owner  = -1;
        llama_pos    n_lent = 0;     // up to where it borrows the owner's prefix
        bool         busy   = false; // holds nodes of a tree
    };

    int32_t check_part(const batch_part & part) const;
    void    check_media(const batch_part & part) const;
    void    sync_positions(llama_seq_id seq_id);

    void        check_open() const;
    void        check_row(int32_t row) const;
    void        check_outputs() const;
    void        check_tokens(const std::vector<llama_token> & tokens) const;
    void        check_fits(size_t n_tokens) const;
    void        check_seq(llama_seq_id seq_id) const;
    void        clear_batch();
    void        begin_part(const batch_part & part);
    void        add_chain(const batch_part & part);
    void        add_tree(const batch_part & part);
    void        add_token(llama_token token, llama_pos pos, bool logits, bool visible);
    llama_batch as_batch();
    int32_t     decode_rows();
    void        forget_lost_snapshots();
    void        run();
    void        take_back_batch();
    void        drop_leaves(llama_seq_id owner, llama_pos end);
    void        lend(llama_seq_id id, llama_pos end);
    void        guard_windows();
    void        add_media(const batch_part & part);
    void        add_pads(const std::vector<batch_part> & parts, int32_t n_pad);
    void        drop_pads();

    llama_seq_id take_leaf(llama_seq_id owner, llama_pos end);

    llama_context * ctx;
    feature_tap *   tap_ptr;
    int32_t         n_vocab_tgt;
    int32_t         n_batch;
    int32_t         n_ctx;
    int32_t         n_embd; // of rows that go in
    int32_t         n_ubatch_ctx;
    int32_t         n_seq_max;
    int32_t         n_seq;
    int32_t         n_guards; // ids behind those, one for each, then come leaves
    bool            unified;
    bool            can_share;      // cells
    bool            may_leave_gaps; // between positions

    // by sequence id
    std::vector<recurrent_round> rounds;
    std::vector<token_positions> positions;
    std::vector<open_draft>      drafts;
    std::vector<leaf_loan>       loans;

    // the last batch, the replay included
    std::vector<llama_token>    batch_tokens;
    const media_piece *         batch_media = nullptr; // rows in place of the tokens
    std::vector<llama_pos>      batch_pos;
    std::vector<int32_t>        batch_n_seq;
    std::vector<llama_seq_id>   batch_seq_ids; // of all tokens, one after the other
    std::vector<llama_seq_id *> batch_seq;
    std::vector<int8_t>         batch_logits;
    int32_t                     batch_n_pad = 0; // the last ones
    bool                        decoded     = false;
    int64_t                     batch_count = 0;

    // what the caller gave: batch index, token and position by row
    std::vector<int32_t>     row_idxs;
    std::vector<llama_token> row_tokens;
    std::vector<llama_pos>   row_pos;

    device_argmax argmax_;
    bool          argmax_used = false; // by the last decode
    bool          is_remote   = false;

    void look_at_all(const float * logits);

    llama_token draw(llama_sampler * smpl, llama_sampler * grammar, const float * logits);

    std::vector<llama_token_data> candidates; // of the last sample() or sample_from()

    int64_t t_decode = 0;
};

} // namespace eagle3
