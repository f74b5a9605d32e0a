#pragma once

#include "target/ubatch_order.h"

#include <vector>

namespace eagle3 {

// Of each sequence id below n_seq_max: whether this batch may leave it without its recurrent snapshots.
//
// llama.cpp gathers the states of an ubatch's sequences in cells beside each other, and what was in these cells goes to
// where they came from: the newest state alone, its snapshots stay behind. So an ubatch of two or more sequences may
// take the snapshots of all that are not in it and were not computed after it (llama-memory-recurrent.cpp, find_slot).
std::vector<bool> snapshots_lost(const llama_batch & batch, const ubatch_split & split, int32_t n_seq_max);

} // namespace eagle3
