#pragma once

#include "drafter/draft_tree.h"
#include "grammar/lookahead.h"
#include "gumbel.h"

#include <functional>
#include <memory>
#include <vector>

namespace eagle3 {

// What is known, besides the target's logits, of how a sequence's next tokens will be chosen.
struct foresight {
    static constexpr int32_t n_top_known = 16; // candidates that noise and grammar are asked about

    std::shared_ptr<const gumbel_noise> noise; // null: greedy, or not known
    std::shared_ptr<grammar_lookahead>  rules; // null: none

    bool knows_something() const { return noise || rules; }

    // How many candidates order() needs to give n.
    int32_t n_top(int32_t n) const { return knows_something() && n < n_top_known ? n_top_known : n; }

    // Orders candidates, of which the n_top best stay. Those that the grammar forbids are removed. With noise they are
    // ordered by log q / temperature + noise, those that the sequence's samplers would cut after the others, and p
    // becomes the softmax of these scores, as the drafter's logits are not quite the target's.
    //
    // candidates: the most probable ones after the drafted tokens `path`. Their ids become the target's. to_target
    // returns the token of an id, or -1 for one that must not be drafted, which is removed too.
    void order(const std::vector<llama_token> & path, const std::function<llama_token(int32_t)> & to_target,
               std::vector<draft_candidate> & candidates, int32_t n_top) const;
};

} // namespace eagle3
