#pragma once

#include "llama.h"

#include <cstdint>
#include <vector>

namespace eagle3 {

// a chunk of an image or a sound: rows of embeddings that are evaluated as a whole
struct media_span {
    int32_t first    = 0; // token where it begins
    int32_t n_tokens = 0; // rows that are in the memory so far, one token each
    int32_t n_pos    = 0; // positions that they take: fewer with M-RoPE, where those of an image are in two dimensions
};

// Where the tokens of a sequence stand. Each takes one position, but those of an image may share them; and a sequence
// cannot end inside of a chunk.
class token_positions {
  public:
    // of token n, if the sequence ends there or a text token is
    llama_pos at(int32_t n) const;

    // tokens before a position where the memory ends
    int32_t count(llama_pos end) const;

    // n, or where the chunk begins that it is inside of
    int32_t floor(int32_t n) const;

    // n_tokens rows from token `first` on were decoded; offset: those of the same chunk before them
    void append(int32_t first, int32_t offset, int32_t n_tokens, int32_t n_pos);

    // the sequence has only n tokens now
    void cut(int32_t n);

    const std::vector<media_span> & spans() const { return spans_; }
    void                            restore(std::vector<media_span> spans) { spans_ = std::move(spans); }

  private:
    std::vector<media_span> spans_; // in order
};

} // namespace eagle3
