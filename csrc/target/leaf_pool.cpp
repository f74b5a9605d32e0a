#include "target/leaf_pool.h"

#include <algorithm>

namespace eagle3 {

leaf_pool::leaf_pool(llama_context * ctx, int32_t n_seq, int32_t n_guards) :
    ctx_(ctx), n_seq_(n_seq), n_guards_(n_guards), n_seq_max_(static_cast<int32_t>(llama_n_seq_max(ctx))),
    loans_(static_cast<size_t>(n_seq_max_)) {
    for (llama_seq_id s = 0; s < n_guards; ++s) {
        loans_[n_seq + s].owner = s;
    }
}

int32_t leaf_pool::n_free() const {
    return static_cast<int32_t>(
        std::count_if(loans_.begin() + first_leaf(), loans_.end(), [](const loan & l) { return !l.is_taken; }));
}

llama_seq_id leaf_pool::take(llama_seq_id owner, llama_pos end) {
    // best is an id that shares a prefix with the owner already, else one that was never taken
    llama_seq_id best = -1;
    for (llama_seq_id s = first_leaf(); s < n_seq_max_; ++s) {
        if (!loans_[s].is_taken &&
            (best < 0 || loans_[s].owner == owner || (loans_[s].owner < 0 && loans_[best].owner != owner))) {
            best = s;
            if (loans_[s].owner == owner) {
                break;
            }
        }
    }
    loan & l = loans_[best];
    if (l.owner != owner) {
        llama_memory_seq_rm(llama_get_memory(ctx_), best, 0, -1);
        l = { owner, 0, false };
    }
    share(best, end);
    l.is_taken = true;
    return best;
}

void leaf_pool::share(llama_seq_id id, llama_pos end) {
    loan &         l   = loans_[id];
    llama_memory_t mem = llama_get_memory(ctx_);
    if (l.end < end) {
        llama_memory_seq_cp(mem, l.owner, id, l.end, end);
        l.end = end;
    }
    // llama.cpp needs both to begin at one position, and the last pass may have reused cells that left the owner's
    // window
    if (end > 0 && llama_memory_seq_pos_min(mem, id) != llama_memory_seq_pos_min(mem, l.owner)) {
        llama_memory_seq_rm(mem, id, 0, -1);
        llama_memory_seq_cp(mem, l.owner, id, 0, end);
    }
}

void leaf_pool::release(llama_seq_id owner, llama_pos end) {
    for (llama_seq_id s = n_seq_; s < n_seq_max_; ++s) {
        loan & l = loans_[s];
        if (l.owner == owner && (l.is_taken || l.end > end)) {
            llama_memory_seq_rm(llama_get_memory(ctx_), s, end, -1);
            l.end      = std::min(l.end, end);
            l.is_taken = false;
        }
    }
}

void leaf_pool::guard(llama_seq_id owner, llama_pos end) {
    if (n_guards_ > 0) {
        share(n_seq_ + owner, end);
    }
}

} // namespace eagle3
