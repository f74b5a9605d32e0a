#pragma once

#include "ggml.h"

#include <cstdint>
#include <utility>
#include <vector>

namespace eagle3::kernels {

using channel_ranges = std::vector<std::pair<int64_t, int64_t>>; // [first, last), ascending, apart

// While it lives, graphs that this thread lets ggml compute get only a part of this matrix's product: channels outside
// the ranges are -INFINITY. Each range begins and ends at a multiple of n_channels_together, or at the matrix's end.
// Products that ggml's own code computes (cpu_kernels.h) are whole.
class limited_product {
  public:
    // A multiple of the channels that lie together in memory, for the weights of any kernel.
    static constexpr int64_t n_channels_together = 16;

    // ranges: must outlive this; null: all channels.
    limited_product(const ggml_tensor * matrix, const channel_ranges * ranges);
    ~limited_product();
    limited_product(const limited_product &)             = delete;
    limited_product & operator=(const limited_product &) = delete;

    // The ranges that this thread has set for a matrix; null: all channels.
    static const channel_ranges * ranges_of(const ggml_tensor * matrix);

  private:
    const ggml_tensor *    matrix_;
    const channel_ranges * ranges_;
    limited_product *      outer_;
};

} // namespace eagle3::kernels
