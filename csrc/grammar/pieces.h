#pragma once

#include "llama.h"

#include <cstdint>
#include <vector>

namespace eagle3 {

// What a text that ends within a character has of it, as llama_partial_utf8.
struct character_part {
    uint32_t value;
    int32_t  n_remain; // 0: the text ends with a whole character
};

// The tokens of a vocabulary as a tree of their characters, so that a grammar is asked once about a beginning that many
// share. Made once for a model: all its grammars read it, in whatever thread.
class token_tree {
  public:
    // A beginning of tokens.
    struct node {
        uint32_t c : 31;       // its last character
        uint32_t is_plain : 1; // all longer ones end with plain characters alone, and so do the tokens
        uint32_t end;          // index after its last longer beginning
        uint32_t first;        // index of its first token; those of longer ones follow its own
    };

    // vocab must live as long as this.
    explicit token_tree(const llama_vocab & vocab);

    token_tree(const token_tree &)             = delete;
    token_tree & operator=(const token_tree &) = delete;

    // Each before longer ones; [0]: the empty one. After the last one is another, whose `first` is their end.
    const std::vector<node> & nodes() const { return nodes_; }

    // Those with text, in the order of nodes. Tokens that end texts are not among them.
    const std::vector<llama_token> & tokens() const { return tokens_; }

    // By the same index: the part of a character with which a token ends.
    const std::vector<character_part> & ends() const { return ends_; }

    const std::vector<llama_token> & ends_texts() const { return ends_texts_; }

    const llama_vocab & vocab() const { return vocab_; }

    // A character that strings of JSON have as it is.
    static bool is_plain(uint32_t c) { return c >= 0x20 && c != '"' && c != '\\' && c != 0x7f; }

  private:
    void close(std::vector<uint32_t> & path, size_t n_left);

    const llama_vocab &         vocab_;
    std::vector<node>           nodes_;
    std::vector<llama_token>    tokens_;
    std::vector<character_part> ends_;
    std::vector<llama_token>    ends_texts_;
};

} // namespace eagle3
