#pragma once

#include "llama.h"

#include <cstdint>
#include <vector>

namespace eagle3 {

enum class part_logits { none, last, all };

// Rows of embeddings in place of tokens: a piece of an image or a sound.
struct media_piece {
    std::vector<float>     embd;          // [n_tokens, n_embd_inp]; empty: it is text
    std::vector<llama_pos> pos;           // M-RoPE: four of each row, [4, n_tokens]; empty: they are consecutive
    int32_t                offset = 0;    // rows of the same chunk in earlier batches
    int32_t                n_pos  = 0;    // M-RoPE: positions that the whole chunk takes
    bool                   causal = true; // false: its rows see each other, and must be decoded together
};

// Tokens of one sequence, after its first n_past.
struct batch_part {
    llama_seq_id             seq_id = 0;
    int32_t                  n_past = 0;
    std::vector<llama_token> tokens;
    // a tree: token i follows token parents[i] < i; the first token is the root, whose parent is not used
    std::vector<int32_t>     parents  = {};
    part_logits              logits   = part_logits::last;
    bool                     is_draft = false; // accept() will choose which tokens stay, as for every tree
    // with embeddings the tokens only mark the rows. A batch has either rows or tokens
    media_piece              media    = {};
};

// Counts the leaves of the part's tree. Throws std::invalid_argument if its parents are not those of a tree.
int32_t count_leaves(const batch_part & part);

} // namespace eagle3
