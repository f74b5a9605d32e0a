#pragma once

#include <cstddef>
#include <cstdint>

namespace eagle3 {

// FNV-1a of 64 bits: the hash of nothing, and the hash with n more bytes
constexpr uint64_t fnv1a_start = 14695981039346656037ull;

inline uint64_t fnv1a(uint64_t hash, const void * data, size_t n) {
    const auto * bytes = static_cast<const uint8_t *>(data);
    for (size_t i = 0; i < n; ++i) {
        hash = (hash ^ bytes[i]) * 1099511628211ull;
    }
    return hash;
}

} // namespace eagle3
