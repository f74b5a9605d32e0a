#include "target/ubatch_order.h"

#include <algorithm>
#include <map>
#include <set>

namespace eagle3 {

ubatch_split ubatch_split_of(const llama_context * ctx) {
    const llama_model * model = llama_get_model(ctx);

    // in a unified cache every sequence can use the whole context
    const bool unified   = llama_n_ctx_seq(ctx) == llama_n_ctx(ctx);
    const bool recurrent = llama_model_is_recurrent(model);
    const bool hybrid    = llama_model_is_hybrid(model);

    ubatch_split res;
    res.n_ubatch = llama_n_ubatch(ctx);
    if (recurrent || hybrid) {
        res.n_keep_tail = llama_n_rs_seq(ctx) > 0 ? llama_n_rs_seq(ctx) + 1 : 0;
    }
    res.in_order   = (llama_n_seq_max(ctx) == 1 && res.n_keep_tail == 0) || (unified && !recurrent && !hybrid);
    res.sequential = recurrent || !unified;
    return res;
}

namespace {

using seq_set = std::set<llama_seq_id>;

bool overlap(const seq_set & a, const seq_set & b) {
    return std::any_of(a.begin(), a.end(), [&](llama_seq_id s) { return b.count(s) > 0; });
}

// The tokens of one set of sequences, in batch order, and how many of them are placed.
struct group {
    std::vector<int32_t> idxs;
    size_t               n_used = 0;

    size_t n_left() const { return idxs.size() - n_used; }
};

} // namespace

void order_ubatches(const llama_batch & batch, const ubatch_split & split, ubatch_order & res) {
    const size_t n_tokens = batch.n_tokens;
    res.idxs.clear();
    res.sizes.clear();
    res.is_batch_order = true;

    if (split.in_order) {
        for (size_t i = 0; i < n_tokens; ++i) {
            res.idxs.push_back(i);
        }
        for (size_t i = 0; i < n_tokens; i += split.n_ubatch) {
            res.sizes.push_back(std::min<size_t>(split.n_ubatch, n_tokens - i));
        }
        return;
    }

    std::map<seq_set, group> groups;
    std::vector<seq_set>     sets(n_tokens);
    for (size_t i = 0; i < n_tokens; ++i) {
        sets[i].insert(batch.seq_id[i], batch.seq_id[i] + batch.n_seq_id[i]);
        groups[sets[i]].idxs.push_back(i);
    }
    std::vector<bool> used(n_tokens, false);

    while (res.idxs.size() < n_tokens) {
        // the sequences of this ubatch: those that come first in the batch and share nothing
        std::vector<seq_set> taken;
        llama_seq_id         seq_last = -1;
        for (size_t i = 0; i < n_tokens && taken.size() <= split.n_ubatch; ++i) {
            const llama_seq_id seq = batch.seq_id[i][0];
            if (used[i] || (split.sequential && !taken.empty() && seq != seq_last + 1)) {
                continue;
            }
            if (std::none_of(taken.begin(), taken.end(), [&](const seq_set & s) { return overlap(s, sets[i]); })) {
                taken.push_back(sets[i]);
                seq_last = seq;
            }
        }

        // the same number of tokens of each, as many as all of them have and as fit
        size_t n_each = std::max<size_t>(1, split.n_ubatch / taken.size());
        for (const auto & s : taken) {
            n_each = std::min(n_each, groups[s].n_left());
        }
        std::vector<size_t> n_take(taken.size(), n_each);

        // sequences of which only a short tail would be left wait for the next ubatch, except the first one
        if (split.n_keep_tail > 0) {
            const auto cuts_tail = [&](const group & g, size_t n) {
                return g.n_left() > n && g.n_left() - n < split.n_keep_tail;
            };
            size_t n_keep = 0;
            while (n_keep < taken.size() && !cuts_tail(groups[taken[n_keep]], n_each)) {
                ++n_keep;
            }
            if (n_keep == 0) {
                const size_t n_left = groups[taken[0]].n_left();
                n_take[0]           = n_left <= split.n_ubatch ? n_left : n_left - split.n_keep_tail;
                n_keep              = 1;
            }
            n_take.resize(n_keep);
        }

        uint32_t n_ubatch = 0;
        for (size_t s = 0; s < n_take.size(); ++s) {
            group & g = groups[taken[s]];
            for (size_t k = 0; k < n_take[s]; ++k) {
                const int32_t i = g.idxs[g.n_used++];
                used[i]         = true;
                res.idxs.push_back(i);
            }
            n_ubatch += n_take[s];
        }
        res.sizes.push_back(n_ubatch);
    }
    res.is_batch_order = std::is_sorted(res.idxs.begin(), res.idxs.end());
}

} // namespace eagle3
