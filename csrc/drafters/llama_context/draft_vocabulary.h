#pragma once

#include "kernels/limited_product.h"
#include "llama.h"

#include <cstdint>
#include <map>
#include <vector>

namespace eagle3 {

// Which tokens of a large vocabulary are drafted: the first ones, since merges of byte pairs are numbered by their
// frequency, those that end a text, and those of the texts that were read last, each with its neighbours in memory.
// Sequences share them, since a token of one text is likely in the next.
//
// A text in another script has other tokens. So while many tokens of a sequence could not have been drafted, all tokens
// are drafted for it.
class draft_vocabulary {
  public:
    // Are the tokens numbered by their frequency?
    static bool is_ordered(const llama_vocab * vocab);

    // vocab: is_ordered. n_rows: rows of the matrix that makes logits. n_first: the first n_first tokens are always
    // drafted. n_seq: number of sequences.
    draft_vocabulary(const llama_vocab * vocab, int64_t n_rows, int64_t n_first, int32_t n_seq);

    int64_t n_first() const { return n_first_; }

    // Drafts these tokens whatever is read.
    void draft_always(const std::vector<llama_token> & tokens);

    // Tells the next tokens of a text.
    void read(llama_seq_id seq_id, const llama_token * tokens, int32_t n_tokens);

    // Tells that another text begins.
    void restart(llama_seq_id seq_id);

    // The rows of the matrix whose tokens are drafted now for these sequences, valid until the next call; null: all.
    const kernels::channel_ranges * ranges(const std::vector<llama_seq_id> & seq_ids);

  private:
    bool is_drafted(int64_t block) const { return last_read_[block] >= n_read_ - n_recent_; }

    int64_t                        n_rows_;
    int64_t                        n_first_;
    int64_t                        n_recent_; // tokens that were read last
    int64_t                        n_read_ = 0;
    std::vector<int64_t>           last_read_; // [block]: n_read_ when a token of it was read last
    std::map<llama_seq_id, double> n_missed_;  // share of the latest tokens that could not have been drafted
    kernels::channel_ranges        ranges_;
};

} // namespace eagle3
