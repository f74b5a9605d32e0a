#pragma once

#include "drafters/ngram/store.h"
#include "grammar/lookahead.h"

#include <memory>
#include <vector>

namespace eagle3 {

// A token that the text suggests. Parents come before their children.
struct ngram_node {
    int32_t     parent; // index of the node before it, -1 = it follows the text
    llama_token token;
    float       p;     // how sure it is, see below: to be calibrated
    int32_t     depth; // 1, 2, ...
};

// Drafts for several sequences without a model: what followed, the last times, where the text ended as it ends now, in
// the text itself, in a store of others or in a corpus, which is a store that nothing is added to.
//
// Each of the latest few occurrences votes for its continuation, with the square of the length that it agrees in, and
// somebody unknown votes for something new, the more the shorter the longest agreement is. A token's share of the votes
// is its p. Along a path agreements get longer, and those with another token drop out. What follows an occurrence
// up to the end of the text goes on from its beginning, as it does in text that repeats itself.
class ngram_drafter {
  public:
    explicit ngram_drafter(int32_t n_seq_max, std::shared_ptr<ngram_store> store = nullptr,
                           std::shared_ptr<const ngram_store> corpus = nullptr);

    // Have a sequence's text be its first n_before tokens and these n: as far as it is that already nothing has to be
    // done. What was generated goes to the store, in pieces. n_prompt: tokens that were not generated. False if it is
    // another text, for which n_before must be 0. Throws std::invalid_argument if it has no n_before tokens.
    bool update(int32_t seq_id, size_t n_before, const llama_token * tokens, size_t n, size_t n_prompt);

    // A new text begins: it is compared from its beginning.
    void begin(int32_t seq_id);

    // tokens that need not be compared if the same prompt goes on
    size_t n_known(int32_t seq_id, size_t n_prompt) const;

    // What its next tokens must be, as long as its text is what it is; null: anything.
    void set_rules(std::shared_ptr<grammar_lookahead> rules, int32_t seq_id);

    // Tokens that may follow, the likeliest n_nodes of paths no longer than n_max, with at most top_k after each node;
    // the best child of a node comes first.
    void propose(int32_t seq_id, int32_t n_max, int32_t n_nodes, int32_t top_k, std::vector<ngram_node> & nodes);

    const ngram_index & text(int32_t seq_id) const;
    int32_t             n_seq_max() const { return static_cast<int32_t>(sequences_.size()); }

  private:
    static constexpr size_t n_votes    = 8;
    static constexpr size_t n_piece    = 64; // tokens that go to the store together
    static constexpr size_t n_before   = 16; // and those before them, to be found by
    static constexpr size_t n_compared = 16; // of a text that should be the same

    struct sequence {
        ngram_index text;
        size_t      n_prompt = 0;
        bool        is_new   = false;
        size_t      n_stored = 0;

        std::shared_ptr<grammar_lookahead> rules = nullptr;
    };

    // an occurrence: what followed, and in how many tokens it agrees with what comes before that
    struct vote {
        const llama_token * next;
        size_t              n;
        int32_t             length;
        bool                repeats; // goes on from its beginning

        bool        has_token(size_t depth) const { return depth < n || repeats; }
        llama_token token(size_t depth) const { return next[depth % n]; }
    };

    // a node with the occurrences that lead to it, as bits
    struct branch {
        float    p_path;
        float    p;
        uint32_t votes;
        int32_t  parent;
        int32_t  depth;
    };

    void store(sequence & s);
    void check(int32_t seq_id) const;
    void drop_forbidden(branch & b, int32_t node, const std::vector<ngram_node> & nodes, grammar_lookahead & rules);
    void expand(const branch & b, int32_t node, int32_t top_k);

    std::vector<sequence>              sequences_;
    std::shared_ptr<ngram_store>       store_;
    std::shared_ptr<const ngram_store> corpus_;
    std::vector<ngram_index::match>    matches_;
    std::vector<ngram_store::match>    stored_;
    std::vector<vote>                  votes_;
    std::vector<branch>                branches_; // that may come next
};

} // namespace eagle3
