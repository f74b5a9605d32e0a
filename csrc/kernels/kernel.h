#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace eagle3::kernels {

// A product of quantized weights and rows of activations. A row's sums are taken in one order, whatever other rows and
// threads there are: its result does not depend on its company.
struct kernel {
    const char * name;       // format of the weights / instruction set
    int64_t      n_channels; // output channels that lie together in memory: a group

    bool (*is_supported)(); // by this processor

    // bytes of a row of k activations as the kernel reads it; k is a multiple of 32
    size_t (*row_size)(int64_t k);
    void (*quantize)(const float * x, int64_t k, uint8_t * row);

    // Groups [first, last) of the weights times n_rows rows: out[r * ldo + channel].
    void (*compute)(const uint8_t * weights, int64_t k, const uint8_t * rows, int64_t n_rows, int64_t first,
                    int64_t last, float * out, int64_t ldo);
};

// all that were compiled, the fastest of a format first
const std::vector<const kernel *> & all();

} // namespace eagle3::kernels
