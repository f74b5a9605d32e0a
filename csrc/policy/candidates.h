#pragma once

#include "drafter/draft_tree.h"
#include "drafters/ngram/drafter.h"
#include "policy/acceptance.h"
#include "policy/request.h"

#include <vector>

namespace eagle3 {

// The tokens that may be verified in a step: what one drafter (the head) and the n-gram drafter propose, as one tree
// per sequence. A token that both propose is accepted with probability 1 - (1 - a)(1 - b).
class candidates {
  public:
    struct node {
        int32_t          parent; // index, -1 = after the sequence's last token
        llama_token      token;
        int32_t          depth; // 1, 2, ...
        llama_seq_id     seq_id;
        float            p_source   = 0.0f;                   // what the head says of it, 0 = nothing
        float            p_ngram    = 0.0f;                   // and the n-gram drafter
        int32_t          in_source  = -1;                     // which of the head's nodes it is, -1 = none
        acceptance::rank rank       = acceptance::rank::best; // among what the head suggests after its parent
        float            q          = 0.0f;                   // how likely it is accepted once its parent is
        float            cum        = 0.0f;                   // how likely the path up to it is
        int32_t          n_children = -1;                     // that are chosen, -1 = it is not chosen itself
        int32_t          in_draft   = -1;                     // its index there
    };

    candidates(const acceptance & ngram, const planner_params & params);

    // a step begins
    void clear();

    // of a sequence of this step: tokens that fit, and that the head may draft after each other
    void add_sequence(llama_seq_id seq_id, int32_t n_room, int32_t n_levels);

    // what the n-gram drafter suggests for it
    void add(llama_seq_id seq_id, const std::vector<ngram_node> & suggested);

    // who drafts in this step, by its acceptance and its bit in draft_tree
    void set_source(const acceptance & head, int32_t by_source);

    // what the head drafted, from its node `first` on
    void add(const std::vector<draft_node> & drafted, size_t first);

    // of the head's deepest nodes those that may be expanded, best first
    std::vector<int32_t> level(int32_t depth) const;

    // Probability that each of the tokens that may be verified together is accepted, best first; of uniform chains
    // those of one depth together.
    const std::vector<float> & gains() const { return gains_; }

    // verify the best n of them: one draft per sequence, in the order in which they were added
    void publish(int32_t n, std::vector<draft_tree> & drafts);

    const std::vector<node> & nodes() const { return nodes_; }
    const node &              at(int32_t i) const { return nodes_[static_cast<size_t>(i)]; }
    int32_t                   n_levels(llama_seq_id seq_id) const { return of(seq_id).n_levels; }
    bool                      has_ngrams() const { return has_ngrams_; }

  private:
    struct sequence {
        size_t  in_step  = 0; // its index
        int32_t n_room   = 0;
        int32_t n_levels = 0;
        int32_t n_chosen = 0; // nodes
        int32_t n_first  = 0; // of them, without a parent
    };

    const sequence & of(llama_seq_id seq_id) const { return sequences_[static_cast<size_t>(seq_id)]; }
    sequence &       of(llama_seq_id seq_id) { return sequences_[static_cast<size_t>(seq_id)]; }
    int32_t          find(int32_t parent, llama_token token, llama_seq_id seq_id) const;
    void             rate(size_t first);
    void             choose();

    const acceptance *        source_ = nullptr; // of this step
    const acceptance &        ngram_;
    int32_t                   by_source_ = 0;
    size_t                    n_nodes_max_;
    int32_t                   n_leaves_max_;
    bool                      uniform_, has_ngrams_ = false;
    std::vector<sequence>     sequences_; // [seq_id]
    std::vector<llama_seq_id> seq_ids_;   // of this step
    std::vector<node>         nodes_;     // parents before children
    std::vector<int32_t>      of_source_; // [the head's node]: which of nodes_ it is, -1 = left out
    std::vector<int32_t>      ranked_;    // nodes, best first
    std::vector<int32_t>      chosen_;    // of them those that may be verified together
    std::vector<float>        gains_;
};

} // namespace eagle3
