#pragma once

#include "drafter/draft_tree.h"
#include "drafters/ngram/drafter.h"
#include "policy/acceptance.h"
#include "policy/request.h"

#include <functional>
#include <map>
#include <vector>

namespace eagle3 {

// The tokens that may be verified in a step: those that one drafter with weights (the source) and the n-gram drafter
// propose, as one tree per sequence. A token that both propose is accepted with probability 1 - (1 - a)(1 - b).
class candidates {
  public:
    struct node {
        int32_t      parent; // index, -1 = after the sequence's last token
        llama_token  token;
        int32_t      depth; // 1, 2, ...
        llama_seq_id seq_id;
        float        p_source   = 0.0f;  // the source's probability of it
        float        p_ngram    = 0.0f;  // the n-gram drafter's, 0 = it did not propose it
        int32_t      in_source  = -1;    // its index among the source's nodes, -1 = the source did not propose it
        bool         is_forced  = false; // by a grammar, which the n-gram drafter proposes
        bool         is_best    = true;  // the most probable token that the source proposes after its parent
        double       cum        = 0.0;   // probability that the whole path to it is accepted
        int32_t      n_children = -1;    // number of chosen children, -1 = the node itself is not chosen
        int32_t      in_draft   = -1;    // its index in the published draft
    };

    explicit candidates(const planner_params & params) : params_(params) {}

    // Forgets the last step.
    void clear();

    // Adds a sequence of this step. n_room: tokens that fit; n_levels: the longest path that the source may draft.
    void add_sequence(llama_seq_id seq_id, int32_t n_room, int32_t n_levels);

    // Adds what the n-gram drafter suggests for it.
    void add(llama_seq_id seq_id, const std::vector<ngram_node> & suggested);

    // Adds the source's nodes from `first` on. accepted: calibrates its p; null: p is taken as it is. bit: the source's
    // bit in draft_tree. keeps: whether the node of this index is added; none: all are.
    void add(const std::vector<draft_node> & drafted, size_t first, const acceptance * accepted, int32_t bit,
             const std::function<bool(size_t)> & keeps = {});

    // The source's nodes of this depth that may be expanded, best first.
    std::vector<int32_t> level(int32_t depth) const;

    // The probabilities that the tokens that may be verified together are accepted, best first. For uniform chains:
    // element i is the sum over the tokens of depth i + 1.
    const std::vector<float> & gains() const { return gains_; }

    // Makes drafts of the best n of them, one per sequence in the order in which the sequences were added.
    void publish(size_t n, std::vector<draft_tree> & drafts);

    const std::vector<node> & nodes() const { return nodes_; }
    const node &              at(int32_t i) const { return nodes_[static_cast<size_t>(i)]; }
    int32_t                   n_levels(llama_seq_id seq_id) const { return sequences_.at(seq_id).n_levels; }
    bool                      has_ngrams() const { return has_ngrams_; }

    // What is known of the n-gram drafter's tokens like this one.
    acceptance &       of_text(const node & n) { return n.is_forced ? grammar : ngram; }
    const acceptance & of_text(const node & n) const { return n.is_forced ? grammar : ngram; }

    acceptance ngram;   // of the n-gram drafter's tokens
    acceptance grammar; // of those that a grammar forces

  private:
    struct sequence {
        size_t  in_step  = 0; // its index in the step
        int32_t n_room   = 0;
        int32_t n_levels = 0;
        int32_t n_chosen = 0; // nodes that are chosen
        int32_t n_first  = 0; // those of them that have no parent
    };

    int32_t find(int32_t parent, llama_token token, llama_seq_id seq_id) const;
    void    rate(size_t first, const acceptance * source);
    void    choose();

    planner_params                   params_;
    bool                             has_ngrams_ = false;
    int32_t                          bit_        = 0;
    std::map<llama_seq_id, sequence> sequences_; // of this step
    std::vector<node>                nodes_;     // parents before children
    std::vector<int32_t>             of_source_; // [index among the source's nodes]: index in nodes_, -1 = left out
    std::vector<int32_t>             ranked_;    // indices in nodes_, best first
    std::vector<int32_t>             chosen_;    // those of ranked_ that may be verified together
    std::vector<float>               gains_;
};

} // namespace eagle3
