#pragma once

#include "target/batch_part.h"

#include "llama.h"

#include <cstdint>
#include <map>
#include <vector>

namespace eagle3 {

// The batch of one llama_decode. Only rows that the caller gave are numbered: those of a replay are not.
class target_batch {
  public:
    void clear();

    // Appends a row of one or more sequences. is_numbered: the caller gave it.
    void add(llama_token token, llama_pos pos, const llama_seq_id * seq_ids, int32_t n_seq_ids, bool logits,
             bool is_numbered = true);

    // Tells that the rows are a piece of an image, whose embeddings replace their tokens. It must outlive the batch.
    void set_media(const media_piece & media);

    void request_logits() { logits_.back() = 1; } // of the last row
    void request_all_logits();

    // Valid until the batch changes.
    llama_batch to_llama();

    int32_t n_tokens() const { return static_cast<int32_t>(tokens_.size()); }
    bool    is_causal() const { return !media_ || media_->causal; }
    bool    is_media() const { return media_ != nullptr; }

    const std::vector<llama_token> & all_tokens() const { return tokens_; }

    // A sequence's lowest position, the position after its last row, and its number of rows with logits.
    struct extent {
        llama_pos first     = 0;
        llama_pos next      = 0;
        int32_t   n_outputs = 0;
    };
    std::map<llama_seq_id, extent> extents() const;

    // by row number
    bool                             has_logits(int32_t row) const { return logits_[row_idxs_[row]] != 0; }
    const std::vector<int32_t> &     row_idxs() const { return row_idxs_; } // index in the batch
    const std::vector<llama_token> & row_tokens() const { return row_tokens_; }
    const std::vector<llama_pos> &   row_pos() const { return row_pos_; }

  private:
    std::vector<llama_token>    tokens_;
    const media_piece *         media_ = nullptr;
    std::vector<llama_pos>      pos_;
    std::vector<int32_t>        n_seq_ids_;
    std::vector<llama_seq_id>   seq_ids_; // of all rows, one after the other
    std::vector<llama_seq_id *> seq_id_ptrs_;
    std::vector<int8_t>         logits_;

    std::vector<int32_t>     row_idxs_;
    std::vector<llama_token> row_tokens_;
    std::vector<llama_pos>   row_pos_;
};

} // namespace eagle3
