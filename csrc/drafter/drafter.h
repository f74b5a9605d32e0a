#pragma once

#include "drafter/draft_session.h"
#include "drafter/limits.h"
#include "grammar/lookahead.h"
#include "gumbel.h"
#include "kernels/cpu_kernels.h"
#include "llama.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace eagle3 {

struct drafter_stats {
    int64_t t_process_us = 0; // process()
    int64_t t_propose_us = 0; // begin() and expand()
    int64_t n_propose    = 0; // drafts, each for all sequences that take part
    int64_t n_steps      = 0; // times that the drafter's weights were read to draft
};

// The interface of all drafters with weights. The engine knows no other type: a new kind of drafter is a new class that
// derives from this one, and its binding.
//
//   process    appends the target's rows of the tokens that were evaluated. A row is the concatenation of the target's
//              hidden states at boundaries(), n_embd_feat() floats
//   begin, expand, nodes
//              draft, see draft_session
//   truncate, copy, restart, state_get, state_set
//              go back, and copy or save what a sequence holds
//
// Accepted tokens come with the next process(). Rejected nodes never were part of the sequence, so they need not be
// removed.
//
// Sequences are 0..n_seq_max() - 1. Methods throw std::invalid_argument for impossible arguments, and error and its
// descendants if a file or a device fails. Only one thread may use an object at a time.
class drafter : public draft_session {
  public:
    virtual const std::string & path() const         = 0; // the drafter's file
    virtual std::string         device() const       = 0; // name of the ggml device that it runs on
    virtual size_t              n_bytes_read() const = 0; // bytes of weights that the first graph of a draft reads

    // The weights that it multiplies by, except the target's.
    virtual const kernels::matrices & matrices() const = 0;

    // Lets our kernels multiply its own weights on the CPU, where `limits` names them.
    virtual void use_cpu_kernels(const kernels::row_limits & limits) = 0;

    // [name of one of our CPU kernels]: the number of own weights that it multiplies.
    virtual std::map<std::string, int64_t> cpu_kernels() const = 0;

    virtual int32_t n_ctx() const     = 0; // positions of each sequence
    virtual int32_t n_seq_max() const = 0;

    // The target's boundaries whose states a row holds: 0 .. n_layer, or n_layer + 1 after the final norm.
    virtual const std::vector<int32_t> & boundaries() const  = 0;
    virtual int32_t                      n_embd_feat() const = 0;            // floats of a row
    virtual int32_t                      n_pos_per_row() const { return 1; } // 4: add_image() must be called (M-RoPE)

    virtual int32_t n_past(llama_seq_id seq_id) const = 0; // number of positions whose rows were appended

    // Appends the rows of the tokens at positions n_past, n_past + 1, ... Token i has row row_ids[i] of `rows`
    // [n, n_embd_feat], or row i without row_ids. may_wait: begin() is not expected soon, so rows may be kept instead
    // of evaluated, as far as memory allows.
    virtual void process(const float * rows, const llama_token * tokens, int32_t n_tokens, int32_t n_past,
                         llama_seq_id seq_id, const int32_t * row_ids, bool may_wait) = 0;

    // Tells that an image begins at position `first`, which is n_past(). n_pos: positions that it takes; pos: the four
    // positions of each of its rows, [4][n], which only drafters with n_pos_per_row() 4 use: to others its rows are
    // like other rows.
    virtual void add_image(int32_t      first, int32_t /* n_pos */, const std::vector<int32_t> & /* pos */,
                           llama_seq_id seq_id) {
        draft_limits::check_add_image(first, n_past(seq_id));
    }

    // Removes positions >= n_past. Returns the position from which rows must be appended again: n_past or less.
    // same_next: the token at n_past will be the same as before.
    virtual int32_t truncate(int32_t n_past, llama_seq_id seq_id, bool same_next) = 0;

    // Replaces the contents of dst by positions < n_past of src, which is not changed. Returns the position from which
    // rows of dst must be appended: what truncate(n_past, same_next) would return for src.
    virtual int32_t copy(llama_seq_id src, llama_seq_id dst, int32_t n_past, bool same_next) = 0;

    // Clears the sequence. The next rows are appended at n_past; positions before are not attended to.
    virtual void restart(int32_t n_past, llama_seq_id seq_id) = 0;

    // Everything that a sequence holds, as bytes in host memory.
    virtual std::vector<uint8_t> state_get(llama_seq_id seq_id)                                     = 0;
    virtual void                 state_set(const std::vector<uint8_t> & state, llama_seq_id seq_id) = 0;

    // Sets the noise that the sequence's next tokens will be drawn with; null: greedy, or not known. With noise the
    // best tokens are those that are expected to be drawn, and a node's p is the probability of that.
    virtual void set_noise(std::shared_ptr<const gumbel_noise> noise, llama_seq_id seq_id) = 0;

    // Sets the grammar that the sequence's next tokens follow, until its text changes: tokens that it forbids are not
    // drafted. A parallel drafter applies it to the first token of a block only.
    virtual void set_rules(std::shared_ptr<grammar_lookahead> rules, llama_seq_id seq_id) = 0;

    // Sets tokens of the target, in ascending order, that have another text in the drafter's vocabulary: they are not
    // drafted.
    virtual void leave_out(const std::vector<llama_token> & tokens) = 0;

    // Limits drafts to the n_first most frequent tokens of the vocabulary and those of the texts; 0: all. False: this
    // drafter drafts all of its tokens.
    virtual bool limit_vocab(int64_t n_first) { return n_first == 0; }

    virtual int64_t draft_vocab() const { return 0; } // that n_first; 0: all tokens are drafted

    // Never leaves these tokens out for that limit: earlier answers had them often.
    virtual void draft_always(const std::vector<llama_token> & /* tokens */) {}

    virtual int64_t t_graph_us() const = 0; // the part of stats' times in which graphs were computed

    double t_draft_us() const override { return static_cast<double>(stats.t_propose_us); }

    drafter_stats stats;
};

} // namespace eagle3
