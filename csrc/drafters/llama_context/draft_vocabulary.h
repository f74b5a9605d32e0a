#pragma once

#include "kernels/limited_product.h"
#include "llama.h"

#include <cstdint>
#include <map>
#include <vector>

namespace eagle3 {

// Which tokens are drafted, of a large vocabulary: the first ones, since merges of byte pairs are numbered by their
// frequency, those that end a text, and those of the texts that were read last, each with the tokens that lie beside it
// in memory. Sequences share them: what one text has, the next one may have.
//
// A text may be of others, in another script. That shows in the tokens that come and could not have been drafted: while
// a sequence has many of these, all tokens are drafted for it.
class draft_vocabulary {
  public:
    // Whether the tokens' numbers say how frequent they are
    static bool is_ordered(const llama_vocab * vocab);

    // vocab: for which that holds. n_rows: of the matrix that makes its logits. n_first: so many tokens are drafted
    // always. n_seq: sequences that take turns
    draft_vocabulary(const llama_vocab * vocab, int64_t n_rows, int64_t n_first, int32_t n_seq);

    int64_t n_first() const { return n_first_; }

    // the next tokens of a text
    void read(llama_seq_id seq_id, const llama_token * tokens, int32_t n_tokens);

    // another text begins
    void restart(llama_seq_id seq_id);

    // What is drafted now for these sequences: rows of the matrix, until the next call; null: all
    const kernels::channel_ranges * ranges(const std::vector<llama_seq_id> & seq_ids);

  private:
    bool is_drafted(int64_t block) const { return last_read_[block] >= n_read_ - n_recent_; }

    int64_t                        n_rows_;
    int64_t                        n_first_;
    int64_t                        n_recent_; // tokens that were read last
    int64_t                        n_read_ = 0;
    std::vector<int64_t>           last_read_; // [block]: n_read_ when a token of it was read last
    std::map<llama_seq_id, double> n_missed_;  // of the latest tokens, this share could not have been drafted
    kernels::channel_ranges        ranges_;
};

} // namespace eagle3
