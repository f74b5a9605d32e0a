#include "target/token_positions.h"

#include <algorithm>

namespace eagle3 {

llama_pos token_positions::at(int32_t n) const {
    llama_pos pos = n;
    for (const media_span & span : spans_) {
        if (span.first + span.n_tokens > n) {
            break;
        }
        pos -= span.n_tokens - span.n_pos;
    }
    return pos;
}

int32_t token_positions::count(llama_pos end) const {
    int32_t n_more = 0; // tokens than positions, so far
    for (const media_span & span : spans_) {
        const llama_pos pos = span.first - n_more;
        if (end <= pos) {
            break;
        }
        if (end <= pos + span.n_pos) {
            // where an image has two dimensions, the memory counts one of them
            return span.first + (span.n_pos == span.n_tokens ? end - pos : span.n_tokens);
        }
        n_more += span.n_tokens - span.n_pos;
    }
    return end + n_more;
}

int32_t token_positions::floor(int32_t n) const {
    for (const media_span & span : spans_) {
        if (span.first < n && n < span.first + span.n_tokens) {
            return span.first;
        }
    }
    return n;
}

void token_positions::append(int32_t first, int32_t offset, int32_t n_tokens, int32_t n_pos) {
    if (offset == 0) {
        spans_.push_back({ first, n_tokens, n_pos });
    } else {
        spans_.back().n_tokens = offset + n_tokens;
        spans_.back().n_pos    = n_pos;
    }
}

void token_positions::cut(int32_t n) {
    spans_.erase(std::remove_if(spans_.begin(), spans_.end(), [n](const media_span & span) { return span.first >= n; }),
                 spans_.end());
}

} // namespace eagle3
