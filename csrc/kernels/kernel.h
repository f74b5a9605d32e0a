#pragma once

#include "ggml.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

// the architectures that there are kernels for
#if defined(__x86_64__) || (defined(__aarch64__) && !defined(__AARCH64EB__))
#define EAGLE3_HAS_KERNELS
#endif

namespace eagle3::kernels {

// where a kernel finds its weights
enum class layout {
    mapped,   // as the file has them: row after row of blocks
    repacked, // as ggml's CPU backend repacks this type (ggml/src/ggml-cpu/repack.cpp)
};

// A product of weights and rows of activations. Each row is summed in one order, so that its result does not
// depend on other rows and on threads.
struct kernel {
    std::string name; // format of the weights / instruction set

    ggml_type       type; // of the weights
    kernels::layout layout;
    int64_t         n_channels; // output channels that lie together in memory: a group
    int64_t         n_inputs;   // k is a multiple of it
    int64_t         n_together; // repacked: bytes of a channel that lie together, before those of the next one

    bool (*is_supported)(); // by this processor

    // bytes of a row of k activations as the kernel reads it, and how it is made
    size_t (*row_size)(int64_t k);
    void (*quantize)(const float * x, int64_t k, uint8_t * row);

    // Groups [first, last) of the weights times n_rows rows: out[r * ldo + channel]. `weights` is the first group,
    // a group takes n_channels * ggml_row_size(type, k) bytes.
    void (*compute)(const uint8_t * weights, int64_t k, const uint8_t * rows, int64_t n_rows, int64_t first,
                    int64_t last, float * out, int64_t ldo);

    int64_t k_block = INT64_MAX; // of longer rows it multiplies so many inputs at a time
};

// all that were compiled, the fastest of a format first
const std::vector<const kernel *> & all();

} // namespace eagle3::kernels
