#pragma once

#include "llama.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace eagle3 {

// A text, and an index of where each of its parts occurred before.
//
// For n-grams of a few lengths a hash table holds the latest place after each n-gram, and every place links to the
// previous place after the same n-gram. So an append takes constant time and can be taken back, as the link tells what
// the table held before. A match is extended backwards to its full length.
class ngram_index {
  public:
    static constexpr std::array<int32_t, 4> orders    = { 2, 4, 8, 16 };
    static constexpr int32_t                n_longest = 64;       // longer matches count as this long
    static constexpr size_t                 n_max     = 1u << 30; // tokens

    struct match {
        uint32_t place;  // index of the token that followed
        int32_t  length; // tokens before it that agree with the end of the text
    };

    // Throws eagle3::error beyond n_max tokens.
    void append(llama_token token);

    // Keeps the first n tokens.
    void truncate(size_t n);

    const std::vector<llama_token> & tokens() const { return tokens_; }

    // Where the last tokens of [begin, end) occurred with something after them: the latest n_matches places after the
    // longest n-gram that did, latest first. [begin, end) may be the tokens of this text, all of them.
    void find(const llama_token * begin, const llama_token * end, size_t n_matches, std::vector<match> & found) const;

    size_t n_bytes() const;

  private:
    // The latest place after each n-gram, with open addressing; 0 = free, since no n-gram ends before token 0.
    struct table {
        std::vector<uint32_t> slots = std::vector<uint32_t>(64);
        std::vector<uint32_t> before; // [place]: the place before it with the same n-gram, 0 = none
        size_t                n_used = 0;
        uint64_t              hash   = 0; // of the last tokens
    };

    static uint64_t hash_of(const llama_token * end, int32_t n);

    size_t slot(const table & t, const llama_token * end, int32_t n, uint64_t hash) const;
    void   insert(table & t, int32_t n, uint32_t place, uint64_t hash);
    void   grow(table & t, int32_t n);

    std::vector<llama_token>         tokens_;
    std::array<table, orders.size()> tables_;
};

} // namespace eagle3
