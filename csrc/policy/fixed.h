#pragma once

#include "drafter/draft_session.h"
#include "policy/request.h"

#include <vector>

namespace eagle3 {

struct fixed_request {
    llama_seq_id seq_id;
    llama_token  id_last;
    draft_shape  shape;
};

// Chains and trees of fixed shapes, one for each request, with one graph per level for all of them. Empty where the
// sequence has no row, or its shape no token. A draft also ends after n_expand() expanded nodes. n_leaves: of all trees
// together, but for the first leaf of each tree after the first. Throws std::invalid_argument.
std::vector<draft_tree> draft_fixed(draft_session & draft, const std::vector<fixed_request> & requests,
                                    int32_t n_leaves);

} // namespace eagle3
