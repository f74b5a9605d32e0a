#pragma once

#include "drafter/draft_tree.h"
#include "grammar/lookahead.h"
#include "gumbel.h"

#include <functional>
#include <memory>
#include <vector>

namespace eagle3 {

// What is known of how a sequence's next tokens will be chosen, beside the target's logits.
struct foresight {
    static constexpr int32_t n_top_known = 16; // candidates of which it may make one the best

    std::shared_ptr<const gumbel_noise> noise; // null: greedy, or not known
    std::shared_ptr<grammar_lookahead>  rules; // null: none

    bool knows_something() const { return noise || rules; }

    // candidates that are needed for n of them
    int32_t n_top(int32_t n) const { return knows_something() && n < n_top_known ? n_top_known : n; }

    // Order candidates by what is known, the n_top best of them stay. What the rules forbid goes. Noise: they are
    // ordered by what they will come to with it, log q / temperature + noise, those that the sequence's samplers would
    // cut after the others; p becomes the softmax of these scores: how likely each is the one, as the head's logits
    // are not quite the target's.
    //
    // candidates: the most probable ones after the drafted tokens `path`. Their ids become the target's: to_target
    // gives the token for one, or -1 for one that must not be drafted, which goes too.
    void order(const std::vector<llama_token> & path, const std::function<llama_token(int32_t)> & to_target,
               std::vector<draft_candidate> & candidates, int32_t n_top) const;
};

} // namespace eagle3
