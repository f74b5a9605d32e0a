#pragma once

#include "draft/drafter.h"

namespace eagle3 {

// Drafts of a fixed shape, of any drafter, by begin() and expand().

// Chains of up to n_max tokens for each sequence, with one graph per step for all of them. A chain stops before a token
// whose probability among the ten best is below p_min, as llama.cpp's do (of a drafter that has confidence: whose
// probability is), and after n_expand() + 1 tokens. Empty without a row or room.
std::vector<std::vector<llama_token>> propose_chains(drafter & draft, const std::vector<llama_seq_id> & seq_ids,
                                                     const std::vector<llama_token> & ids_last,
                                                     const std::vector<int32_t> & n_max, float p_min);

// A dynamic tree as in EAGLE-2 (arXiv 2406.16858, sections 4.1 and 4.2), with the meaning that SGLang gives its three
// numbers: `depth` levels (speculative-num-steps), on each the top_k most probable nodes are expanded into top_k
// children (speculative-eagle-topk), and of all nodes the n_tokens most probable ones are kept (speculative-num-
// draft-tokens - 1, as that counts the root). A node's probability is the product along its path, so that parents of
// kept nodes are kept.
draft_tree propose_tree(drafter & draft, llama_token id_last, int32_t depth, int32_t top_k, int32_t n_tokens,
                        llama_seq_id seq_id);

} // namespace eagle3
