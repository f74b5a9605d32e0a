#include "drafters/ngram/sorted_texts.h"

#include <algorithm>
#include <cstddef>

namespace eagle3 {

namespace {

// The tokens before a place, the last one first, up to the beginning of its text.
struct before {
    const llama_token * begin;
    const llama_token * end;

    // The token n tokens back, from 1 on; -1: none.
    llama_token at(int32_t n) const { return n > ngram_index::n_longest || n > end - begin ? -1 : end[-n]; }
};

// How many of their last tokens agree.
int32_t n_common(const before & a, const before & b) {
    int32_t n = 0;
    while (a.at(n + 1) >= 0 && a.at(n + 1) == b.at(n + 1)) {
        ++n;
    }
    return n;
}

// How they are ordered: by the first token in which they differ. Negative ones end a text.
bool is_less(const before & a, const before & b) {
    const int32_t n = n_common(a, b) + 1;
    return std::max(a.at(n), -1) < std::max(b.at(n), -1);
}

// The longest n-gram that is looked for and has at most so many tokens; 0: none.
int32_t order_of(int32_t length) {
    int32_t order = 0;
    for (const int32_t n : ngram_index::orders) {
        order = n <= length ? n : order;
    }
    return order;
}

} // namespace

bool sorted_texts::is_less(uint32_t a, uint32_t b) const {
    const llama_token * first = tokens_.data();
    return eagle3::is_less(before{ first, first + a }, before{ first, first + b });
}

void sorted_texts::add(const llama_token * begin, const llama_token * end) {
    run    places;
    size_t n_text = 0; // tokens since the text's beginning or an image
    for (const llama_token * token = begin; token < end; ++token) {
        if (*token >= 0 && n_text >= static_cast<size_t>(ngram_index::orders[0])) {
            places.push_back(static_cast<uint32_t>(tokens_.size()));
        }
        n_text = *token < 0 ? 0 : n_text + 1;
        tokens_.push_back(*token);
    }
    tokens_.push_back(separator);
    if (places.empty()) {
        return;
    }
    std::sort(places.begin(), places.end(), [this](uint32_t a, uint32_t b) { return is_less(a, b); });
    places.shrink_to_fit();
    runs_.push_back(std::move(places));
    while (runs_.size() > 1) {
        const run & last        = runs_.back();
        run &       before_last = runs_[runs_.size() - 2];
        if (before_last.size() > last.size() || before_last.size() + last.size() > n_run_max) {
            break;
        }
        before_last = merged(before_last, last);
        runs_.pop_back();
    }
}

sorted_texts::run sorted_texts::merged(const run & a, const run & b) const {
    run both(a.size() + b.size());
    std::merge(a.begin(), a.end(), b.begin(), b.end(), both.begin(),
               [this](uint32_t x, uint32_t y) { return is_less(x, y); });
    return both;
}

void sorted_texts::merge() {
    while (runs_.size() > 1) { // neighbours, so that a place moves as often as their number is halved
        std::vector<run> fewer;
        for (size_t i = 0; i < runs_.size(); i += 2) {
            fewer.push_back(i + 1 < runs_.size() ? merged(runs_[i], runs_[i + 1]) : std::move(runs_[i]));
        }
        runs_ = std::move(fewer);
    }
}

void sorted_texts::find(const llama_token * begin, const llama_token * end, size_t n_matches,
                        std::vector<ngram_index::match> & found) const {
    found.clear();
    for (const run & places : runs_) {
        find_in(places, begin, end, found);
    }
    int32_t longest = 0;
    for (const auto & m : found) {
        longest = std::max(longest, m.length);
    }
    const int32_t order = order_of(longest);
    found.erase(std::remove_if(found.begin(), found.end(), [order](const auto & m) { return m.length < order; }),
                found.end());
    std::sort(found.begin(), found.end(), [](const auto & a, const auto & b) { return a.place > b.place; });
    found.resize(std::min(found.size(), n_matches));
}

// Appends the places of a run after the longest n-gram that it has, those with the longest agreement first.
void sorted_texts::find_in(const run & places, const llama_token * begin, const llama_token * end,
                           std::vector<ngram_index::match> & found) const {
    const llama_token * first  = tokens_.data();
    const before        asked  = { begin, end };
    const auto          length = [&](auto place) {
        return n_common(asked, before{ first, first + *place });
    };
    auto    right   = std::lower_bound(places.begin(), places.end(), asked, [first](uint32_t place, const before & b) {
        return eagle3::is_less(before{ first, first + place }, b);
    });
    auto    left    = right;
    int32_t n_right = right == places.end() ? 0 : length(right);
    int32_t n_left  = left == places.begin() ? 0 : length(left - 1);
    const int32_t order = order_of(std::max(n_left, n_right));
    for (size_t n = 0; order > 0 && n < n_seen_max && std::max(n_left, n_right) >= order; ++n) {
        if (n_right >= n_left) {
            found.push_back({ *right, n_right });
            n_right = ++right == places.end() ? 0 : length(right);
        } else {
            found.push_back({ *--left, n_left });
            n_left = left == places.begin() ? 0 : length(left - 1);
        }
    }
}

size_t sorted_texts::n_bytes() const {
    size_t n = tokens_.capacity() * sizeof(llama_token);
    for (const run & places : runs_) {
        n += places.capacity() * sizeof(uint32_t);
    }
    return n;
}

} // namespace eagle3
