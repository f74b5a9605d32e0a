#pragma once

#include "target/ubatch_order.h"

#include <vector>

namespace eagle3 {

// [sequence id below n_seq_max]: whether this batch may leave it without its recurrent snapshots.
//
// llama.cpp moves the states of a ubatch's sequences to neighbouring cells, and what was in these cells to the places
// that became free: only the newest state, without its snapshots. So a ubatch of two or more sequences may destroy the
// snapshots of all sequences that are neither in it nor computed after it (llama-memory-recurrent.cpp, find_slot).
std::vector<bool> snapshots_lost(const llama_batch & batch, const ubatch_split & split, int32_t n_seq_max);

} // namespace eagle3
