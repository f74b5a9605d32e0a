#pragma once

#include "ggml.h"

#include <cstdint>
#include <utility>
#include <vector>

namespace eagle3::kernels {

using channel_ranges = std::vector<std::pair<int64_t, int64_t>>; // [first, last), ascending, apart

// While it lives, graphs that this thread has ggml compute get a part of this matrix's product: channels outside of the
// ranges are -INFINITY. Each range begins and ends at a multiple of n_channels_together, or at the matrix's end.
// Products that are ggml's (cpu_kernels.h) are whole.
class limited_product {
  public:
    // Channels that lie together in memory, of any kernel's weights
    static constexpr int64_t n_channels_together = 16;

    // ranges: kept by the caller; null: all channels
    limited_product(const ggml_tensor * matrix, const channel_ranges * ranges);
    ~limited_product();
    limited_product(const limited_product &)             = delete;
    limited_product & operator=(const limited_product &) = delete;

    // what this thread has set for a matrix; null: all channels
    static const channel_ranges * ranges_of(const ggml_tensor * matrix);

  private:
    const ggml_tensor *    matrix_;
    const channel_ranges * ranges_;
    limited_product *      outer_;
};

} // namespace eagle3::kernels
