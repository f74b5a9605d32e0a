// Rows that only make a pass faster: behind the sequences' own, seen by nobody, forgotten at once.

#include "target/target.h"

#include <algorithm>
#include <map>

namespace eagle3 {

// behind all other rows, so that they can be left out again
void target::add_pads(const std::vector<batch_part> & parts, int32_t n_pad) {
    const auto n_parts = static_cast<int32_t>(parts.size());
    if (n_pad <= 0 || batch_media || rounds[0].kind() != rollback_kind::trim ||
        static_cast<int32_t>(batch_tokens.size()) + n_pad > std::min(n_batch, n_ubatch_ctx)) {
        return;
    }
    std::vector<llama_seq_id> behind;
    for (const auto & part : parts) {
        behind.push_back(part.seq_id);
    }
    if (!unified && n_pad % n_parts != 0) {
        const auto n_each = static_cast<int32_t>(parts.front().tokens.size());
        const auto first  = behind.back() + 1;
        if (n_pad % n_each != 0 || first + n_pad / n_each > n_seq) {
            return;
        }
        behind.clear();
        for (llama_seq_id s = first; s < first + n_pad / n_each; ++s) {
            behind.push_back(s);
        }
    }
    std::map<llama_seq_id, llama_pos> next;
    for (const llama_seq_id s : behind) {
        next[s] = position(s, n_past(s));
    }
    for (size_t i = 0, k = 0; i < batch_tokens.size(); ++i) {
        for (int32_t s = 0; s < batch_n_seq[i]; ++s, ++k) {
            next[batch_seq_ids[k]] = batch_pos[i] + 1; // of a tree: behind the path to its first leaf
        }
    }
    for (int32_t i = 0; i < n_pad; ++i) {
        const llama_seq_id s = behind[static_cast<size_t>(i) % behind.size()];
        add_token(parts.front().tokens.back(), next[s]++, /*logits =*/false, /*visible =*/false);
        batch_seq_ids.push_back(s);
    }
    batch_n_pad = n_pad;
}

// have the memory forget them, or leave them out of a batch that was not decoded
void target::drop_pads() {
    if (batch_n_pad == 0) {
        return;
    }
    const size_t n = batch_tokens.size() - static_cast<size_t>(batch_n_pad);
    if (decoded) {
        for (size_t i = n; i < batch_tokens.size(); ++i) {
            llama_memory_seq_rm(llama_get_memory(ctx), *batch_seq[i], batch_pos[i], -1);
        }
    }
    batch_tokens.resize(n);
    batch_pos.resize(n);
    batch_n_seq.resize(n);
    batch_seq.resize(n);
    batch_seq_ids.resize(batch_seq_ids.size() - static_cast<size_t>(batch_n_pad));
    batch_logits.resize(n);
    batch_n_pad = 0;
}

} // namespace eagle3
