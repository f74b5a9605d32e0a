#pragma once

#include "context/context_drafter.h"
#include "py_drafter.h"

#include <vector>

namespace eagle3::python {

// of a drafter on a context of llama.cpp; matrices: addresses of ggml tensors
inline void use_cpu_kernels(py_drafter & self, const std::vector<uintptr_t> & matrices,
                            const kernels::row_limits & n_rows_max) {
    const busy_flag::scope scope(self.busy);
    kernels::matrices      weights;
    for (const uintptr_t address : matrices) {
        weights.push_back(reinterpret_cast<const ggml_tensor *>(address));
    }
    static_cast<context_drafter &>(self.impl()).use_cpu_kernels(weights, n_rows_max);
}

} // namespace eagle3::python
