#pragma once

#include "llama.h"

#include <cstdint>
#include <optional>

namespace eagle3 {

// A draft of a fixed shape. A tree is dynamic as in EAGLE-2 (arXiv 2406.16858, sections 4.1 and 4.2), with the meaning
// that SGLang gives its three numbers: `depth` levels (speculative-num-steps), on each the top_k most probable nodes
// are expanded into top_k children (speculative-eagle-topk), and of all nodes the n_tokens most probable ones are kept
// (speculative-num-draft-tokens - 1, as that counts the root). A chain is a tree of top_k 1.
struct draft_shape {
    int32_t depth    = 0;
    int32_t top_k    = 1;
    int32_t n_tokens = 0;
    int32_t n_min    = 0; // a draft of fewer tokens is not verified
    // A draft ends before a token whose probability among the ten best is below this, as llama.cpp's chains do. Of a
    // drafter that has confidence, the probability itself is compared.
    float   p_min    = 0.0f;
};

// A sequence to draft for in a step.
struct draft_request {
    llama_seq_id               seq_id      = 0;
    llama_token                id_last     = 0;
    int32_t                    n_past      = 0;  // tokens before id_last
    int32_t                    n_room      = 0;  // tokens that fit after id_last
    int32_t                    n_max       = 0;  // longest path of drafters with weights; 0: they are not asked
    int32_t                    ngram_n_max = 0;  // the same of the n-gram drafter, which must have seen all tokens
    int32_t                    drafters    = -1; // bit i: drafter i may be asked
    std::optional<draft_shape> shape       = {}; // none: the planner chooses
};

struct planner_params {
    int32_t n_max        = 16; // longest path
    int32_t n_nodes_max  = 16; // drafted tokens of one step, all sequences together
    int32_t n_leaves_max = 1;  // leaves of all trees of a step; the first leaves of all sequences count as one
    int32_t top_k        = 1;  // candidates after each node; 1: chains only
    int32_t n_seq_max    = 1;
    bool    uniform      = false; // chains of all sequences have one length, or llama.cpp would split the batch
    // if more tokens of a chain are rejected than this, the next pass replays the accepted ones; none: never
    std::optional<int32_t> n_snapshots = {};

    bool has_trees() const { return top_k > 1; }
};

} // namespace eagle3
