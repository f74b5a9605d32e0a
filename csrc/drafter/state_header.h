#pragma once

#include "error.h"

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <vector>

namespace eagle3 {

// Reads the header that the saved states of a kind of drafter begin with: its fields `magic` and `size`, that of the
// whole state, must be right. what: the kind, for messages. Throws std::invalid_argument.
template <class header_type>
header_type read_header(const std::vector<uint8_t> & state, uint32_t magic, const char * what) {
    header_type header = {};
    if (state.size() < sizeof(header)) {
        throw std::invalid_argument(format("not a state of %s: too short", what));
    }
    memcpy(&header, state.data(), sizeof(header));
    if (header.magic != magic || header.size != state.size()) {
        throw std::invalid_argument(format("not a state of %s, or truncated", what));
    }
    return header;
}

} // namespace eagle3
