#pragma once

#include "llama.h"

#include <cstdint>
#include <vector>

namespace eagle3 {

// How llama.cpp cuts a batch into ubatches.
struct ubatch_split {
    uint32_t n_ubatch    = 0;
    bool     in_order    = true;  // in the batch's order; false: the same number of tokens of each sequence
    bool     sequential  = false; // then only sequences with consecutive ids share a ubatch
    uint32_t n_keep_tail = 0;     // the last tokens of a sequence that must stay in one ubatch (recurrent snapshots)
};

// The rule that the memory of this context follows.
ubatch_split ubatch_split_of(const llama_context * ctx);

// Batch indices in the order in which they are evaluated, and the size of each ubatch.
struct ubatch_order {
    std::vector<int32_t>  idxs;
    std::vector<uint32_t> sizes;
    bool                  is_batch_order = true;
};

void order_ubatches(const llama_batch & batch, const ubatch_split & split, ubatch_order & res);

} // namespace eagle3
