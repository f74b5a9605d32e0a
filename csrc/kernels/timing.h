#pragma once

#include "kernels/cpu_kernels.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace eagle3::kernels {

// [number of rows]: microseconds per MiB of weights, by our kernel and by ggml.
using kernel_times = std::map<int64_t, std::pair<double, double>>;

// Times each kernel and ggml's own code in turns on the weights that the kernel would compute, for about `seconds` in
// all, and returns the fastest of several runs. If time runs out, the last of `n_rows` are missing. Each run takes
// other weights, so that these come from memory as in a pass, if the model is larger than the caches. OpenMP keeps a
// team of threads for the calling thread.
std::map<std::string, kernel_times> time_kernels(const matrices & weights, const row_limits & limits, int32_t n_threads,
                                                 const std::vector<int64_t> & n_rows, double seconds);

} // namespace eagle3::kernels
