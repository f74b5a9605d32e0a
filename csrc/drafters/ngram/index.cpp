#include "drafters/ngram/index.h"

#include "error.h"

#include <algorithm>
#include <cstring>

namespace eagle3 {

namespace {

constexpr uint64_t factor = 6364136223846793005ull;

constexpr uint64_t power(int32_t n) {
    uint64_t result = 1;
    for (int32_t i = 0; i < n; ++i) {
        result *= factor;
    }
    return result;
}

constexpr std::array<uint64_t, ngram_index::orders.size()> powers = { power(ngram_index::orders[0]),
                                                                      power(ngram_index::orders[1]),
                                                                      power(ngram_index::orders[2]),
                                                                      power(ngram_index::orders[3]) };

// Spreads bits, since the lowest are used and tokens are small numbers.
uint64_t spread(uint64_t hash) {
    hash ^= hash >> 32;
    hash *= 0x9e3779b97f4a7c15ull;
    return hash ^ (hash >> 29);
}

} // namespace

uint64_t ngram_index::hash_of(const llama_token * end, int32_t n) {
    uint64_t hash = 0;
    for (int32_t i = n; i > 0; --i) {
        hash = hash * factor + static_cast<uint32_t>(end[-i]);
    }
    return hash;
}

// The slot where the n-gram before `end` is, or would be.
size_t ngram_index::slot(const table & t, const llama_token * end, int32_t n, uint64_t hash) const {
    const size_t mask  = t.slots.size() - 1;
    const size_t bytes = static_cast<size_t>(n) * sizeof(llama_token);
    size_t       i     = spread(hash) & mask;
    while (t.slots[i] != 0 && memcmp(tokens_.data() + t.slots[i] - n, end - n, bytes) != 0) {
        i = (i + 1) & mask;
    }
    return i;
}

void ngram_index::insert(table & t, int32_t n, uint32_t place, uint64_t hash) {
    uint32_t & latest = t.slots[slot(t, tokens_.data() + place, n, hash)];
    t.before[place]   = latest;
    t.n_used += latest == 0;
    latest = place;
}

// Slots are taken again in the order of the text, so that the one taken last can be given back.
void ngram_index::grow(table & t, int32_t n) {
    t.slots.assign(2 * t.slots.size(), 0);
    t.n_used = 0;
    for (size_t place = static_cast<size_t>(n); place < t.before.size(); ++place) {
        insert(t, n, static_cast<uint32_t>(place), hash_of(tokens_.data() + place, n));
    }
}

void ngram_index::append(llama_token token) {
    if (tokens_.size() >= n_max) {
        throw error(format("a text of more than %zu tokens cannot be searched", n_max));
    }
    const size_t place = tokens_.size();
    tokens_.push_back(token);
    for (size_t k = 0; k < orders.size(); ++k) {
        table &       t = tables_[k];
        const int32_t n = orders[k];
        t.before.push_back(0);
        if (place >= static_cast<size_t>(n)) {
            insert(t, n, static_cast<uint32_t>(place), t.hash);
            if (2 * t.n_used > t.slots.size()) {
                grow(t, n);
            }
        }
        t.hash = t.hash * factor + static_cast<uint32_t>(token);
        if (place >= static_cast<size_t>(n)) {
            t.hash -= powers[k] * static_cast<uint32_t>(tokens_[place - static_cast<size_t>(n)]);
        }
    }
}

void ngram_index::truncate(size_t n) {
    if (n >= tokens_.size()) {
        return;
    }
    for (size_t k = 0; k < orders.size(); ++k) {
        table &       t     = tables_[k];
        const int32_t order = orders[k];
        for (size_t place = tokens_.size() - 1; place >= std::max(n, static_cast<size_t>(order)); --place) {
            const llama_token * end    = tokens_.data() + place;
            uint32_t &          latest = t.slots[slot(t, end, order, hash_of(end, order))];
            latest                     = t.before[place];
            t.n_used -= latest == 0;
        }
        t.before.resize(n);
        const size_t n_hashed = std::min(n, static_cast<size_t>(order));
        t.hash                = hash_of(tokens_.data() + n, static_cast<int32_t>(n_hashed));
    }
    tokens_.resize(n);
}

void ngram_index::find(const llama_token * begin, const llama_token * end, size_t n_matches,
                       std::vector<match> & found) const {
    found.clear();
    for (size_t k = orders.size(); k-- > 0;) {
        const table & t = tables_[k];
        const int32_t n = orders[k];
        if (end - begin < n) {
            continue;
        }
        uint32_t place = t.slots[slot(t, end, n, hash_of(end, n))];
        for (; place != 0 && found.size() < n_matches; place = t.before[place]) {
            const auto most = static_cast<int32_t>(
                std::min({ static_cast<std::ptrdiff_t>(n_longest), end - begin, static_cast<std::ptrdiff_t>(place) }));
            int32_t length = n;
            while (length < most && tokens_[place - static_cast<size_t>(length) - 1] == end[-length - 1]) {
                ++length;
            }
            found.push_back({ place, length });
        }
        if (!found.empty()) {
            return;
        }
    }
}

size_t ngram_index::n_bytes() const {
    size_t n = tokens_.capacity() * sizeof(llama_token);
    for (const table & t : tables_) {
        n += (t.slots.capacity() + t.before.capacity()) * sizeof(uint32_t);
    }
    return n;
}

} // namespace eagle3
