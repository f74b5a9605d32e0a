#pragma once

#include "llama.h"

#include <cstdint>
#include <vector>

namespace eagle3 {

// A chunk of an image or a sound: rows of embeddings that are evaluated as a whole.
struct media_span {
    int32_t first    = 0; // index of its first token
    int32_t n_tokens = 0; // rows that are in the memory so far; each counts as a token
    int32_t n_pos    = 0; // positions that it takes: fewer with M-RoPE, where an image has two dimensions
};

// The positions of a sequence's tokens. Each token takes one position, but those of an image may share them, and a
// sequence cannot end inside of a chunk.
class token_positions {
  public:
    // The position of token n, which must be text or the end of the sequence.
    llama_pos at(int32_t n) const;

    // The number of tokens before the position at which the memory ends.
    int32_t count(llama_pos end) const;

    // n, or the beginning of the chunk that n is inside of.
    int32_t floor(int32_t n) const;

    // Tells that n_tokens rows from token `first` on were decoded. offset: rows of the same chunk before them.
    void append(int32_t first, int32_t offset, int32_t n_tokens, int32_t n_pos);

    // Tells that the sequence has only n tokens now.
    void cut(int32_t n);

    const std::vector<media_span> & spans() const { return spans_; }
    void                            restore(std::vector<media_span> spans) { spans_ = std::move(spans); }

  private:
    std::vector<media_span> spans_; // in order
};

} // namespace eagle3
