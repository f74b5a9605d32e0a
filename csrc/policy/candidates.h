#pragma once

#include "drafter/draft_tree.h"
#include "drafters/ngram/drafter.h"
#include "policy/acceptance.h"
#include "policy/request.h"

#include <functional>
#include <map>
#include <vector>

namespace eagle3 {

// The tokens that may be verified in a step: what one drafter with weights (the source) and the n-gram drafter propose,
// as one tree per sequence. A token that both propose is accepted with probability 1 - (1 - a)(1 - b).
class candidates {
  public:
    struct node {
        int32_t      parent; // index, -1 = after the sequence's last token
        llama_token  token;
        int32_t      depth; // 1, 2, ...
        llama_seq_id seq_id;
        float        p_source   = 0.0f; // what the source says of it
        float        p_ngram    = 0.0f; // and the n-gram drafter, 0 = nothing
        int32_t      in_source  = -1;   // which of the source's nodes it is, -1 = none
        bool         is_best    = true; // of what the source suggests after its parent
        double       cum        = 0.0;  // how likely the path up to it is accepted
        int32_t      n_children = -1;   // that are chosen, -1 = it is not chosen itself
        int32_t      in_draft   = -1;   // its index there
    };

    explicit candidates(const planner_params & params) : params_(params) {}

    // a step begins
    void clear();

    // of a sequence of this step: tokens that fit, and that the source may draft after each other
    void add_sequence(llama_seq_id seq_id, int32_t n_room, int32_t n_levels);

    // what the n-gram drafter suggests for it
    void add(llama_seq_id seq_id, const std::vector<ngram_node> & suggested);

    // What a source drafted, from its node `first` on. accepted: null: its p is how likely a token is. bit: its own in
    // draft_tree. keeps: whether one of its nodes counts; none: all do.
    void add(const std::vector<draft_node> & drafted, size_t first, const acceptance * accepted, int32_t bit,
             const std::function<bool(size_t)> & keeps = {});

    // of the source's deepest nodes those that may be expanded, best first
    std::vector<int32_t> level(int32_t depth) const;

    // Probability that each of the tokens that may be verified together is accepted, best first; of uniform chains
    // those of one depth together.
    const std::vector<float> & gains() const { return gains_; }

    // verify the best n of them: one draft per sequence, in the order in which they were added
    void publish(size_t n, std::vector<draft_tree> & drafts);

    const std::vector<node> & nodes() const { return nodes_; }
    const node &              at(int32_t i) const { return nodes_[static_cast<size_t>(i)]; }
    int32_t                   n_levels(llama_seq_id seq_id) const { return sequences_.at(seq_id).n_levels; }
    bool                      has_ngrams() const { return has_ngrams_; }

    acceptance ngram; // how often the n-gram drafter is right

  private:
    struct sequence {
        size_t  in_step  = 0; // its index
        int32_t n_room   = 0;
        int32_t n_levels = 0;
        int32_t n_chosen = 0; // nodes
        int32_t n_first  = 0; // of them, without a parent
    };

    int32_t find(int32_t parent, llama_token token, llama_seq_id seq_id) const;
    void    rate(size_t first, const acceptance * source);
    void    choose();

    planner_params                   params_;
    bool                             has_ngrams_ = false;
    int32_t                          bit_        = 0;
    std::map<llama_seq_id, sequence> sequences_; // of this step
    std::vector<node>                nodes_;     // parents before children
    std::vector<int32_t>             of_source_; // [the source's node]: which of nodes_ it is, -1 = left out
    std::vector<int32_t>             ranked_;    // nodes, best first
    std::vector<int32_t>             chosen_;    // of them those that may be verified together
    std::vector<float>               gains_;
};

} // namespace eagle3
