#pragma once

#include "target/device_argmax.h"
#include "target/feature_tap.h"
#include "target/recurrent_round.h"

#include "llama.h"

#include <cstdint>
#include <vector>

namespace eagle3 {

// tokens of one sequence, from position n_past on
struct batch_part {
    llama_seq_id             seq_id;
    int32_t                  n_past;
    std::vector<llama_token> tokens;
};

// The target's context, as speculative decoding needs it: decode, sample row by row, take back. Everything that could
// make llama.cpp abort is checked first. The context and the model belong to somebody else. For one thread at a time.
//
// Rows are numbered as the tokens that decode*() was given, whatever else the batch held (see recurrent_round: replay).
//
// Trees. A drafted tree is decoded as one batch in which a node belongs to the sequences of all leaves below it, in a
// cache that the sequences share. Leaf 0 is sequence 0; the others borrow its prefix, and give up what was rejected:
//
//   sequence 0   prefix  root  a  b        leaf 0 = b
//   sequence 1   prefix  root  a  c        leaf 1 = c: shares root and a with leaf 0
//   sequence 2   prefix  root  d           leaf 2 = d
class target {
  public:
    // tap: may be null, else it is attached here
    target(llama_context * ctx, const llama_model * model, feature_tap * tap);

    target(const target &)             = delete;
    target & operator=(const target &) = delete;

    // forget the positions from n_past on and evaluate the tokens there, with one llama_decode.
    // logits: for all tokens, or only for the last one. If it throws, the memory ends at n_past or before it
    void decode(const std::vector<llama_token> & tokens, int32_t n_past, bool logits_all = true,
                llama_seq_id seq_id = 0);

    // the same for several sequences at once; logits for all tokens, or for the last one of each
    void decode_parts(const std::vector<batch_part> & parts, bool logits_all = true);

    // evaluate a tree from position n_past of sequence 0 on: token i follows token parents[i] < i; the first one is the
    // root, its parent is not looked at
    void decode_tree(const std::vector<llama_token> & tokens, const std::vector<int32_t> & parents, int32_t n_past);

    bool holds_tree() const { return decoded && !tree_parents.empty(); }

    // after decode_tree: keep the path through these rows, the root first, and forget the other nodes
    void keep(const std::vector<int32_t> & rows);

    // the general form. Nothing is forgotten before; if it throws, what the batch had added is taken back
    void decode_batch(const std::vector<llama_token> & tokens, const std::vector<llama_pos> & pos,
                      const std::vector<std::vector<llama_seq_id>> & seq_ids, const std::vector<bool> & logits);

    // row: index in the last batch; its logits must have been asked for
    llama_token   argmax(int32_t row) const; // the first of the greatest
    const float * logits(int32_t row) const;

    // let the target's device take the argmax of each row: logits() and sample() then throw, since the rows stay there.
    // n_outputs: rows with logits that a sequence may have in a batch; 0 = bring them here again
    void set_device_argmax(int32_t n_outputs);

    bool logits_are_remote() const { return is_remote; }

    // sample from a row, and let the sampler accept the token. n_best > 0: the sampler looks at that many of the best
    // tokens only (its first link is top-k), so that nothing has to be done for the others
    llama_token sample(llama_sampler * smpl, int32_t row, int32_t n_best = 0);

    // taking tokens of a sequence back
    recurrent_round & round(llama_seq_id seq_id);

    // keep the first n_past positions of a sequence. Returns the position from which tokens must be decoded again:
    // n_past, or less where the memory cannot go back there
    int32_t truncate(int32_t n_past, llama_seq_id seq_id = 0);

    // make the memory hold exactly the sequences' tokens: no replay, no leaves. For whoever is about to look at it
    void settle();

    // leaves that a tree may have; 1 where only chains can be verified
    int32_t n_leaves_max() const { return n_leaves; }

    // the context is about to be freed: every later call throws
    void close();

    const std::vector<llama_token> & tokens() const { return row_tokens; }
    const std::vector<llama_pos> &   pos() const { return row_pos; }
    const feature_tap *              tap() const { return tap_ptr; }
    int32_t                          n_vocab() const { return n_vocab_tgt; }
    int64_t                          t_decode_us() const { return t_decode; } // in llama_decode and synchronize

  private:
    void check_open() const;
    void check_row(int32_t row) const;
    void check_outputs() const;
    void check_tokens(const std::vector<llama_token> & tokens) const;
    void check_fits(size_t n_tokens) const;
    void check_seq(llama_seq_id seq_id) const;
    void clear_batch();
    void begin_part(const batch_part & part);
    void add_part(const batch_part & part, bool logits_all);
    void add_token(llama_token token, llama_pos pos, bool logits, bool visible);
    void run();
    void take_back_batch();
    void drop_leaves(int32_t n_past);

    llama_context * ctx;
    feature_tap *   tap_ptr;
    int32_t         n_vocab_tgt;
    int32_t         n_batch;
    int32_t         n_ctx;
    int32_t         n_seq_max;
    int32_t         n_leaves;
    bool            may_leave_gaps; // between positions

    std::vector<recurrent_round> rounds; // by sequence
    std::vector<int32_t>         n_lent; // by sequence: up to where it borrows the prefix of sequence 0 for trees

    // the last batch, the replay included
    std::vector<llama_token>    batch_tokens;
    std::vector<llama_pos>      batch_pos;
    std::vector<int32_t>        batch_n_seq;
    std::vector<llama_seq_id>   batch_seq_ids; // of all tokens, one after the other
    std::vector<llama_seq_id *> batch_seq;
    std::vector<int8_t>         batch_logits;
    bool                        decoded = false;

    std::vector<int32_t>      tree_parents; // empty if the last batch was no tree
    std::vector<llama_seq_id> tree_leaf;    // the first leaf below each node

    // what the caller gave: batch index, token and position by row
    std::vector<int32_t>     row_idxs;
    std::vector<llama_token> row_tokens;
    std::vector<llama_pos>   row_pos;

    device_argmax argmax_;
    bool          argmax_used = false; // by the last decode
    bool          is_remote   = false;

    std::vector<llama_token_data> candidates; // scratch of sample()

    int64_t t_decode = 0;
};

} // namespace eagle3
