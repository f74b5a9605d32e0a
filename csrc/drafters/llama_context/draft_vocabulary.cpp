#include "drafters/llama_context/draft_vocabulary.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace eagle3 {

namespace {

constexpr int64_t n_together = kernels::limited_product::n_channels_together;
constexpr int64_t n_recent   = 8192; // tokens of each sequence
constexpr int64_t always     = std::numeric_limits<int64_t>::max();

// If one token in ten cannot be drafted, drafts lose as much as they gain by taking a third less time.
constexpr double missed_max = 0.1;
constexpr double n_averaged = 256.0; // tokens

} // namespace

bool draft_vocabulary::is_ordered(const llama_vocab * vocab) {
    const auto type = llama_vocab_type(vocab);
    return type == LLAMA_VOCAB_TYPE_BPE || type == LLAMA_VOCAB_TYPE_SPM;
}

draft_vocabulary::draft_vocabulary(const llama_vocab * vocab, int64_t n_rows, int64_t n_first, int32_t n_seq) :
    n_rows_(n_rows), n_first_(std::min(n_rows, (n_first + n_together - 1) / n_together * n_together)),
    n_recent_(n_recent * n_seq), last_read_((n_rows + n_together - 1) / n_together, -n_recent_ - 1) {
    std::fill_n(last_read_.begin(), n_first_ / n_together, always);
    const auto n_tokens = static_cast<llama_token>(std::min<int64_t>(llama_vocab_n_tokens(vocab), n_rows));
    for (llama_token token = 0; token < n_tokens; ++token) {
        // SentencePiece has single characters at the end, among them those of punctuation
        if (llama_vocab_is_eog(vocab, token) || strlen(llama_vocab_get_text(vocab, token)) == 1) {
            last_read_[token / n_together] = always;
        }
    }
}

void draft_vocabulary::draft_always(const std::vector<llama_token> & tokens) {
    for (const llama_token token : tokens) {
        if (token >= 0 && token < n_rows_) {
            last_read_[token / n_together] = always;
        }
    }
}

void draft_vocabulary::read(llama_seq_id seq_id, const llama_token * tokens, int32_t n_tokens) {
    double & missed = n_missed_[seq_id];
    for (int64_t i = std::max<int64_t>(0, n_tokens - n_recent_); i < n_tokens; ++i) {
        if (tokens[i] < 0 || tokens[i] >= n_rows_) {
            continue;
        }
        const int64_t block = tokens[i] / n_together;
        missed += ((is_drafted(block) ? 0.0 : 1.0) - missed) / n_averaged;
        last_read_[block] = std::max(last_read_[block], ++n_read_);
    }
}

void draft_vocabulary::restart(llama_seq_id seq_id) {
    n_missed_.erase(seq_id);
}

const kernels::channel_ranges * draft_vocabulary::ranges(const std::vector<llama_seq_id> & seq_ids) {
    for (const llama_seq_id id : seq_ids) {
        const auto missed = n_missed_.find(id);
        if (missed != n_missed_.end() && missed->second > missed_max) {
            return nullptr;
        }
    }
    ranges_.clear();
    for (int64_t block = 0; block < static_cast<int64_t>(last_read_.size()); ++block) {
        if (!is_drafted(block)) {
            continue;
        }
        const int64_t first = block * n_together;
        const int64_t last  = std::min(first + n_together, n_rows_);
        if (!ranges_.empty() && ranges_.back().second == first) {
            ranges_.back().second = last;
        } else {
            ranges_.emplace_back(first, last);
        }
    }
    return &ranges_;
}

} // namespace eagle3
