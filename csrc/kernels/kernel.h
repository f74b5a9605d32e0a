#pragma once

#include "ggml.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

// Kernels exist for these architectures.
#if defined(__x86_64__) || (defined(__aarch64__) && !defined(__AARCH64EB__))
#define EAGLE3_HAS_KERNELS
#endif

namespace eagle3::kernels {

// Rows that are multiplied by weights that are unpacked once, so that they stay in a core's cache: at most so many,
// with loops of 512 bits, and with tiles.
constexpr int64_t ROWS_TOGETHER = 32, ROWS_TOGETHER_WIDE = 64, ROWS_TILED = 128;

// How a kernel's weights lie in memory.
enum class layout {
    mapped,   // as in the file: row after row of blocks
    repacked, // as ggml's CPU backend repacks this type (ggml/src/ggml-cpu/repack.cpp)
};

// Multiplies weights by rows of activations. Each row is summed in one order, so that its result does not depend on
// other rows or on threads.
struct kernel {
    std::string name; // format of the weights / instruction set

    ggml_type       type; // of the weights
    kernels::layout layout;
    int64_t         n_channels; // channels of a group: those that lie together in memory
    int64_t         n_inputs;   // k must be a multiple of this
    int64_t         n_together; // repacked: bytes of a channel that lie together, before those of the next channel

    bool (*is_supported)(); // by this processor

    // The bytes of a row of k activations as the kernel reads it, and the function that makes it.
    size_t (*row_size)(int64_t k);
    void (*quantize)(const float * x, int64_t k, uint8_t * row);

    // Multiplies groups [first, last) of the weights by n_rows rows: out[r * ldo + channel]. `weights` is group 0; a
    // group has n_channels * ggml_row_size(type, k) bytes.
    void (*compute)(const uint8_t * weights, int64_t k, const uint8_t * rows, int64_t n_rows, int64_t first,
                    int64_t last, float * out, int64_t ldo);

    int64_t k_block = INT64_MAX;     // inputs of a longer row that it multiplies at a time
    int64_t n_rows  = ROWS_TOGETHER; // rows that it is given at a time, if there are more
};

// All kernels that were compiled, the fastest of each format first.
const std::vector<const kernel *> & all();

} // namespace eagle3::kernels
