#pragma once

#include "drafter/draft_session.h"
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

// What the engine needs of a drafter. It knows no other type: one more kind of drafter is one more class that derives
// from this one, and its binding.
//
//   process    append the target's rows of the tokens that were evaluated. A row of the target is the concatenation of
//              its hidden states at boundaries(), n_embd_feat() floats
//   begin, expand, nodes
//              draft, as draft_session says
//   truncate, copy, restart, state_get, state_set
//              go back, and hand on what a sequence holds
//
// What the target accepts comes with the next process(). Rejected nodes never were part of the sequence, so that
// nothing has to be taken back.
//
// Sequences are 0..n_seq_max() - 1. Methods throw std::invalid_argument for arguments that cannot be, and error and its
// descendants for what depends on files and devices. An object serves one thread at a time.
class drafter : public draft_session {
  public:
    virtual const std::string & path() const         = 0; // of the file that it is made of
    virtual std::string         device() const       = 0; // name of the ggml device that it runs on
    virtual size_t              n_bytes_read() const = 0; // of weights, by the first graph of a draft

    // that it multiplies by, except those of the target
    virtual const kernels::matrices & matrices() const = 0;

    // Have the CPU multiply its own weights by our kernels; the target's limits choose which compute its
    virtual void use_cpu_kernels(const kernels::row_limits & limits) = 0;

    // [name of one of our CPU kernels]: own weights that it multiplies
    virtual std::map<std::string, int64_t> cpu_kernels() const = 0;

    virtual int32_t n_ctx() const     = 0; // positions of each sequence
    virtual int32_t n_seq_max() const = 0;

    // boundaries of the target that rows are made of; 0 .. n_layer, or n_layer + 1 after the final norm
    virtual const std::vector<int32_t> & boundaries() const  = 0;
    virtual int32_t                      n_embd_feat() const = 0;            // floats of a row
    virtual int32_t                      n_pos_per_row() const { return 1; } // 4: add_image() is wanted (M-RoPE)

    virtual int32_t n_past(llama_seq_id seq_id) const = 0; // positions whose rows were appended

    // Append the rows of the tokens at positions n_past, n_past + 1, ... Token i has row row_ids[i] of `rows`
    // [n, n_embd_feat], or row i without row_ids. may_wait: begin() is not expected soon, so that rows may be kept
    // instead of evaluated, as far as memory allows.
    virtual void process(const float * rows, const llama_token * tokens, int32_t n_tokens, int32_t n_past,
                         llama_seq_id seq_id, const int32_t * row_ids, bool may_wait) = 0;

    // An image begins at position `first`, which is n_past(): four positions of each of its rows, [4][n], and the
    // number of positions that it takes. Only with n_pos_per_row() 4
    virtual void add_image(int32_t first, int32_t n_pos, const std::vector<int32_t> & pos, llama_seq_id seq_id) = 0;

    // Remove positions >= n_past. Returns the position from which rows must be appended again: n_past or less.
    // same_next: the token at n_past will be the one that was there.
    virtual int32_t truncate(int32_t n_past, llama_seq_id seq_id, bool same_next) = 0;

    // Replace the contents of dst by positions < n_past of src. Returns the position from which rows of dst must be
    // appended: what truncate(n_past, same_next) would return for src, which stays as it is.
    virtual int32_t copy(llama_seq_id src, llama_seq_id dst, int32_t n_past, bool same_next) = 0;

    // Clear the sequence. The next rows are appended at n_past; positions before are not attended to.
    virtual void restart(int32_t n_past, llama_seq_id seq_id) = 0;

    // all that a sequence holds, as bytes in host memory
    virtual std::vector<uint8_t> state_get(llama_seq_id seq_id)                                     = 0;
    virtual void                 state_set(const std::vector<uint8_t> & state, llama_seq_id seq_id) = 0;

    // What the sequence's next tokens will be drawn with, if that is known: then the best tokens are those that are
    // expected to be drawn, and a node's p is the probability of that. None: greedy, or not known.
    virtual void set_noise(std::shared_ptr<const gumbel_noise> noise, llama_seq_id seq_id) = 0;

    // What its next tokens must be, as long as its text is what it is: tokens that cannot come are not drafted. A
    // drafter that makes a block at once applies it to the first one only.
    virtual void set_rules(std::shared_ptr<grammar_lookahead> rules, llama_seq_id seq_id) = 0;

    // These tokens of the target, in ascending order, are others in the drafter's own vocabulary: they are not drafted
    virtual void leave_out(const std::vector<llama_token> & tokens) = 0;

    // Draft n_first tokens of the vocabulary alone, the most frequent ones, and those of the texts, if that saves time;
    // 0: all. False: it drafts all of its tokens
    virtual bool limit_vocab(int64_t n_first) { return n_first == 0; }

    virtual int64_t draft_vocab() const { return 0; } // that n_first; 0: all tokens are drafted

    virtual int64_t t_graph_us() const = 0; // of stats' times: computing graphs

    double t_draft_us() const override { return static_cast<double>(stats.t_propose_us); }

    drafter_stats stats;
};

} // namespace eagle3
