#pragma once

#include "drafters/ngram/sorted_texts.h"

#include <array>
#include <mutex>

namespace eagle3 {

// Texts that have been written, for all sequences of a process to draft from. Of limited size: it is filled in two
// halves, of which the older one goes when the younger is full. For any number of threads.
class ngram_store {
  public:
    struct match {
        int32_t                  length;
        std::vector<llama_token> tokens; // what followed
    };

    // n_max: tokens. Throws std::invalid_argument if < 2.
    explicit ngram_store(size_t n_max);

    // a piece of a text
    void add(const llama_token * begin, const llama_token * end);

    // what followed the longest part at the end of [begin, end) that occurred: the latest n_matches, n tokens of each
    std::vector<match> find(const llama_token * begin, const llama_token * end, size_t n_matches, size_t n) const;

    // Makes searches as fast as they can be, after many texts.
    void merge();

    size_t n_tokens() const;
    size_t n_bytes() const;
    void   clear();

  private:
    size_t                      n_half_;
    mutable std::mutex          mutex_;
    std::array<sorted_texts, 2> halves_; // the younger one first
};

} // namespace eagle3
