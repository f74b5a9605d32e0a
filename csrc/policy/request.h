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
    int32_t n_min    = 0; // fewer tokens are not verified
    // It ends before a token whose probability among the ten best is below this, as llama.cpp's chains do; of a drafter
    // that has confidence: whose probability is
    float   p_min    = 0.0f;
};

// a sequence of a step that is drafted for
struct draft_request {
    llama_seq_id               seq_id      = 0;
    llama_token                id_last     = 0;
    int32_t                    n_past      = 0;  // tokens before id_last
    int32_t                    n_room      = 0;  // tokens that fit after id_last
    int32_t                    n_max       = 0;  // of the drafters' that may follow each other; 0: they are not asked
    int32_t                    ngram_n_max = 0;  // and of the n-gram drafter's, which must be up to date
    int32_t                    drafters    = -1; // that may be asked for it, a bit for each
    std::optional<draft_shape> shape       = {}; // none: what pays best
};

struct planner_params {
    int32_t n_max        = 16; // longest path
    int32_t n_nodes_max  = 16; // drafted tokens of one step, all sequences together
    int32_t n_leaves_max = 1;  // of all trees of a step, but for the first one of each sequence after the first
    int32_t top_k        = 1;  // candidates after each node; 1: chains only
    int32_t n_seq_max    = 1;
    bool    uniform      = false; // chains of several sequences have one length: other batches would be cut to pieces
    // of a chain of which more are rejected than this, the next pass evaluates all accepted tokens again; none: never
    std::optional<int32_t> n_snapshots = {};

    bool has_trees() const { return top_k > 1; }
};

} // namespace eagle3
