#pragma once

#include "llama.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace eagle3 {

// A token that a drafter finds: an id of its own vocabulary, which foresight replaces by the target's.
struct draft_candidate {
    int32_t id = 0;
    float   p  = 0.0f;
};

// a drafted token that may follow others
struct draft_node {
    int32_t      parent      = -1;   // index of the node before it, -1 = it follows id_last
    llama_token  token       = 0;    // of the target's vocabulary
    float        p           = 0.0f; // the drafter's own probability of the token after its parent
    int32_t      depth       = 0;    // 1, 2, ...
    llama_seq_id seq_id      = 0;
    bool         is_expanded = false; // begin() or expand() has looked for what follows it, and may have found nothing
};

// Drafted tokens with parents before their children; parents are indices into tokens, -1 = after id_last.
struct draft_tree {
    std::vector<llama_token> tokens;
    std::vector<int32_t>     parents;
    std::vector<float>       probs; // the drafter's own probability of a token after its parent

    // bits of the drafters that suggested the token; empty: the first drafter
    static constexpr int32_t by_ngram   = 1;
    static constexpr int32_t by_grammar = 2; // a grammar forces it

    static constexpr int32_t by_drafter(size_t i) { return 4 << i; }

    std::vector<int32_t> sources;
};

} // namespace eagle3
