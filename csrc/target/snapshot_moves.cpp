#include "target/snapshot_moves.h"

#include <set>

namespace eagle3 {

std::vector<bool> snapshots_lost(const llama_batch & batch, const ubatch_split & split, int32_t n_seq_max) {
    ubatch_order order;
    order_ubatches(batch, split, order);
    std::vector<bool> res(static_cast<size_t>(n_seq_max), false);
    size_t            i = 0;
    for (const uint32_t n : order.sizes) {
        std::set<llama_seq_id> in_ubatch;
        for (const size_t end = i + n; i < end; ++i) {
            in_ubatch.insert(batch.seq_id[order.idxs[i]][0]);
        }
        if (in_ubatch.size() > 1) {
            res.assign(res.size(), true);
        }
        for (const llama_seq_id s : in_ubatch) {
            res[static_cast<size_t>(s)] = false;
        }
    }
    return res;
}

} // namespace eagle3
