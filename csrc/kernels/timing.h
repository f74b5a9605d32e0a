#pragma once

#include "kernels/cpu_kernels.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace eagle3::kernels {

// [rows]: microseconds per MiB of weights, by our kernel and by ggml
using kernel_times = std::map<int64_t, std::pair<double, double>>;

// Time each kernel on the weights that it would compute, and ggml's own code on the same: the fastest of several runs
// in turns, for about `seconds` of all kernels. Numbers of rows for which there is no time left are left out, from the
// end of `n_rows`. Runs go round through the weights, so that they come from memory as they do in a pass, as far as the
// model is larger than the caches.
std::map<std::string, kernel_times> time_kernels(const matrices & weights, const row_limits & limits, int32_t n_threads,
                                                 const std::vector<int64_t> & n_rows, double seconds);

} // namespace eagle3::kernels
