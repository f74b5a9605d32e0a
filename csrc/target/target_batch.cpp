#include "target/target_batch.h"

#include <algorithm>

namespace eagle3 {

void target_batch::clear() {
    tokens_.clear();
    media_ = nullptr;
    pos_.clear();
    n_seq_ids_.clear();
    seq_ids_.clear();
    logits_.clear();
    row_idxs_.clear();
    row_tokens_.clear();
    row_pos_.clear();
}

void target_batch::add(llama_token token, llama_pos pos, const llama_seq_id * seq_ids, int32_t n_seq_ids, bool logits,
                       bool is_numbered) {
    if (is_numbered) {
        row_idxs_.push_back(n_tokens());
        row_tokens_.push_back(token);
        row_pos_.push_back(pos);
    }
    tokens_.push_back(token);
    pos_.push_back(pos);
    n_seq_ids_.push_back(n_seq_ids);
    seq_ids_.insert(seq_ids_.end(), seq_ids, seq_ids + n_seq_ids);
    logits_.push_back(logits ? 1 : 0);
}

void target_batch::set_media(const media_piece & media) {
    media_ = &media;
    if (!media.pos.empty()) {
        pos_ = media.pos; // four dimensions, one after the other
    }
}

void target_batch::request_all_logits() {
    std::fill(logits_.begin(), logits_.end(), 1);
}

llama_batch target_batch::to_llama() {
    seq_id_ptrs_.clear();
    for (size_t i = 0, n = 0; i < tokens_.size(); n += static_cast<size_t>(n_seq_ids_[i++])) {
        seq_id_ptrs_.push_back(seq_ids_.data() + n);
    }
    llama_batch batch = {};
    batch.n_tokens    = n_tokens();
    batch.embd        = media_ ? const_cast<float *>(media_->embd.data()) : nullptr; // llama.cpp only reads
    batch.token       = media_ ? nullptr : tokens_.data();
    batch.pos         = pos_.data();
    batch.n_seq_id    = n_seq_ids_.data();
    batch.seq_id      = seq_id_ptrs_.data();
    batch.logits      = logits_.data();
    return batch;
}

std::map<llama_seq_id, target_batch::extent> target_batch::extents() const {
    std::map<llama_seq_id, extent> res;
    for (size_t i = 0, k = 0; i < tokens_.size(); ++i) {
        for (int32_t s = 0; s < n_seq_ids_[i]; ++s, ++k) {
            extent & e = res.emplace(seq_ids_[k], extent{ pos_[i], 0, 0 }).first->second;
            e.first    = std::min(e.first, pos_[i]);
            e.next     = pos_[i] + 1; // for a tree: the position after the path to its first leaf
            e.n_outputs += logits_[i];
        }
    }
    return res;
}

} // namespace eagle3
