#pragma once

#include "drafter/draft_tree.h"

#include <cstdint>
#include <vector>

namespace eagle3 {

// The part of a drafter that the policy uses: drafts for some sequences at once, level by level. A simulated drafter
// need not have more.
//
//   begin
//              evaluates the rows that wait, and drafts the top_k best tokens after id_last, the token at n_past
//   expand
//              drafts the next level after some of the nodes; any number of times
//   nodes
//              the draft so far, with probabilities
//
// A parallel drafter makes a block of tokens in one graph: begin() computes n_steps levels and appends the first one,
// expand() appends the others and computes nothing.
class draft_session {
  public:
    draft_session()                                  = default;
    draft_session(const draft_session &)             = delete;
    draft_session & operator=(const draft_session &) = delete;
    virtual ~draft_session()                         = default;

    virtual bool    is_parallel() const                  = 0;
    virtual int32_t n_unroll() const                     = 0; // most n_steps of begin()
    virtual int32_t n_expand() const                     = 0; // most nodes of a sequence that a draft may expand
    virtual int32_t n_waiting(llama_seq_id seq_id) const = 0; // rows that begin() has to evaluate first

    // Starts a draft: appends, for each sequence that has a row, the top_k most probable tokens after its id_last. With
    // n_steps > 1, the same graph follows the best of them n_steps - 1 times, each time with top_k nodes after it.
    virtual void begin(const std::vector<llama_seq_id> & seq_ids, const std::vector<llama_token> & ids_last,
                       int32_t top_k, int32_t n_steps) = 0;

    // Appends the top_k most probable tokens after each of these nodes, which were not expanded before, by one graph.
    // Nodes at the end of the context get none.
    virtual void expand(const std::vector<int32_t> & nodes, int32_t top_k) = 0;

    // The draft's nodes, parents before their children; the best child of a node comes first. The next call of another
    // method than expand() ends the draft.
    virtual const std::vector<draft_node> & nodes() const = 0;

    // Is a node's p the probability that the target accepts it, instead of a share among the drafter's own tokens?
    virtual bool has_confidence() const { return false; }

    virtual double t_draft_us() const = 0; // of all calls of begin() and expand()
};

} // namespace eagle3
