#pragma once

#include "drafter/draft_tree.h"
#include "drafters/ngram/store.h"
#include "grammar/lookahead.h"

#include <memory>
#include <vector>

namespace eagle3 {

// A token that the text suggests. Parents come before their children.
struct ngram_node {
    int32_t     parent; // index of the node before it, -1 = it follows the text
    llama_token token;
    float       p;                 // share of the votes, see ngram_drafter: not a calibrated probability
    int32_t     depth;             // 1, 2, ...
    bool        is_forced = false; // it was set as known to follow, see set_forced
};

// Drafts for several sequences without a model. It looks for the latest places where the end of the text occurred
// before: in the text itself, in a store of other texts, and in a corpus, which is a store that nothing is added to.
//
// Each of these occurrences votes for the token that followed it, with the square of the length in which it agrees with
// the text. A token that none has gets votes too, with the length of the longest agreement. A token's share of the
// votes is its p. Along a path agreements get longer, and occurrences that go on with another token drop out. An
// occurrence that reaches the end of the text goes on from its own beginning, as text that repeats itself does.
class ngram_drafter {
  public:
    explicit ngram_drafter(int32_t n_seq_max, std::shared_ptr<ngram_store> store = nullptr,
                           std::shared_ptr<const ngram_store> corpus = nullptr);

    // Makes a sequence's text its first n_before tokens and these n; only what has changed takes time. Generated tokens
    // are added to the store, in pieces. n_prompt: tokens that were not generated. False if it is another text, for
    // which n_before must be 0. Throws std::invalid_argument if the text has fewer than n_before tokens.
    bool update(int32_t seq_id, size_t n_before, const llama_token * tokens, size_t n, size_t n_prompt);

    // Tells that a new text begins, which is compared from its beginning.
    void begin(int32_t seq_id);

    // How many tokens need not be compared if the same prompt goes on.
    size_t n_known(int32_t seq_id, size_t n_prompt) const;

    // Sets the grammar that its next tokens follow, until its text changes; null: none.
    void set_rules(std::shared_ptr<grammar_lookahead> rules, int32_t seq_id);

    // Sets tokens that are known to follow, a grammar's, until its text changes: it proposes them, then more.
    void set_forced(std::vector<draft_candidate> tokens, int32_t seq_id);

    const std::vector<draft_candidate> & forced(int32_t seq_id) const;

    // Tokens that may follow, the likeliest n_nodes of paths no longer than n_max, with at most top_k after each node;
    // the best child of a node comes first.
    void propose(int32_t seq_id, int32_t n_max, int32_t n_nodes, int32_t top_k, std::vector<ngram_node> & nodes);

    const ngram_index & text(int32_t seq_id) const;
    int32_t             n_seq_max() const { return static_cast<int32_t>(sequences_.size()); }

  private:
    static constexpr size_t n_votes    = 8;
    static constexpr size_t n_piece    = 64; // tokens that are added to the store together
    static constexpr size_t n_before   = 16; // tokens before them, by which they are found
    static constexpr size_t n_compared = 16; // tokens that are compared of a text that should be the same

    struct sequence {
        ngram_index text;
        size_t      n_prompt = 0;
        bool        is_new   = false;
        size_t      n_stored = 0;

        std::shared_ptr<grammar_lookahead> rules  = nullptr;
        std::vector<draft_candidate>       forced = {};
    };

    // An occurrence: where it goes on, and the number of tokens before that which agree with the text.
    struct vote {
        const llama_token * next;
        size_t              n;
        int32_t             length;
        bool                repeats; // it reached the end of the text, and goes on from its beginning

        bool        has_token(size_t depth) const { return depth < n || repeats; }
        llama_token token(size_t depth) const { return next[depth % n]; }
    };

    // A node, and the occurrences that lead to it, as bits. depth: without the forced nodes.
    struct branch {
        float    p_path;
        float    p;
        uint32_t votes;
        int32_t  parent;
        int32_t  depth;
    };

    void store(sequence & s);
    void check(int32_t seq_id) const;
    void go_on(int32_t seq_id, int32_t n_max, int32_t n_nodes, int32_t top_k, std::vector<ngram_node> & nodes);
    void drop_forbidden(branch & b, int32_t node, const std::vector<ngram_node> & nodes, grammar_lookahead & rules);
    void expand(const branch & b, int32_t node, int32_t top_k);

    std::vector<sequence>              sequences_;
    std::shared_ptr<ngram_store>       store_;
    std::shared_ptr<const ngram_store> corpus_;
    std::vector<ngram_index::match>    matches_;
    std::vector<ngram_store::match>    stored_;
    std::vector<vote>                  votes_;
    std::vector<branch>                branches_;     // that may come next
    int32_t                            n_forced_ = 0; // nodes before the first branch
};

} // namespace eagle3
