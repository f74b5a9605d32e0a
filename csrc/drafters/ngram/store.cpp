#include "drafters/ngram/store.h"

#include "error.h"

#include <algorithm>
#include <stdexcept>

namespace eagle3 {

ngram_store::ngram_store(size_t n_max) : n_half_(n_max / 2) {
    if (n_half_ < 1 || n_half_ >= ngram_index::n_max) {
        throw std::invalid_argument(
            format("text store: expected room for 2 to %zu tokens, found %zu", 2 * ngram_index::n_max - 1, n_max));
    }
}

void ngram_store::add(const llama_token * begin, const llama_token * end) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto                        n = static_cast<size_t>(end - begin);
    if (n == 0) {
        return;
    }
    if (halves_[0].tokens().size() + n + 1 > n_half_) {
        std::swap(halves_[0], halves_[1]);
        halves_[0] = {};
    }
    halves_[0].add(n < n_half_ ? begin : end - n_half_ + 1, end);
}

void ngram_store::merge() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (sorted_texts & half : halves_) {
        half.merge();
    }
}

std::vector<ngram_store::match> ngram_store::find(const llama_token * begin, const llama_token * end, size_t n_matches,
                                                  size_t n) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<match>                result;
    std::vector<ngram_index::match>   found;
    for (const sorted_texts & half : halves_) {
        half.find(begin, end, n_matches, found);
        for (const auto & m : found) {
            const auto first  = half.tokens().begin() + m.place;
            const auto n_left = static_cast<size_t>(half.tokens().end() - first);
            const auto last   = std::find_if(first, first + static_cast<std::ptrdiff_t>(std::min(n, n_left)),
                                             [](llama_token token) { return token < 0; }); // a separator, or an image
            if (first != last) {
                result.push_back({ m.length, { first, last } });
            }
        }
    }
    std::stable_sort(result.begin(), result.end(),
                     [](const match & a, const match & b) { return a.length > b.length; });
    if (result.size() > n_matches) {
        result.resize(n_matches);
    }
    return result;
}

size_t ngram_store::n_tokens() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return halves_[0].tokens().size() + halves_[1].tokens().size();
}

size_t ngram_store::n_bytes() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return halves_[0].n_bytes() + halves_[1].n_bytes();
}

void ngram_store::clear() {
    const std::lock_guard<std::mutex> lock(mutex_);
    halves_ = {};
}

} // namespace eagle3
