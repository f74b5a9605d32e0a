#pragma once

#include "drafters/ngram/index.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace eagle3 {

// Texts, and the places in them, sorted by the tokens before each, the last one first: places after the same n-gram lie
// together. It takes 8 bytes a token, where ngram_index takes 100, and only grows.
//
// What was added lately is in runs of its own, each sorted. A run that is as long as the one before it is merged with
// it, up to n_run_max places, so that no call of add() takes long; each run is searched by halving.
class sorted_texts {
  public:
    static constexpr llama_token separator = -1; // between texts; nothing continues there, nor in an image (< 0)
    static constexpr size_t      n_run_max = 1 << 16;

    // A piece of a text.
    void add(const llama_token * begin, const llama_token * end);

    // Merges all runs, so that a search takes the least time.
    void merge();

    // Where the last tokens of [begin, end) occurred with something after them: the latest n_matches places after the
    // longest n-gram that did, of ngram_index's orders, latest first. Of an n-gram that is frequent the places are
    // looked at whose agreement is longest, n_seen_max in a run.
    void find(const llama_token * begin, const llama_token * end, size_t n_matches,
              std::vector<ngram_index::match> & found) const;

    const std::vector<llama_token> & tokens() const { return tokens_; }

    size_t n_bytes() const;

  private:
    static constexpr size_t n_seen_max = 128;

    using run = std::vector<uint32_t>; // places, sorted

    bool is_less(uint32_t a, uint32_t b) const;
    run  merged(const run & a, const run & b) const;
    void find_in(const run & places, const llama_token * begin, const llama_token * end,
                 std::vector<ngram_index::match> & found) const;

    std::vector<llama_token> tokens_;
    std::vector<run>         runs_; // of ever later texts
};

} // namespace eagle3
