#pragma once

#include "ggml.h"

#include "kernels/libggml_cpu.h"

#include <cstdint>
#include <utility>

namespace eagle3::kernels {

// The address of a row of a tensor.
template <class T>
T * at(const ggml_tensor * t, int64_t i1, int64_t i2, int64_t i3) {
    return reinterpret_cast<T *>(static_cast<char *>(t->data) + i1 * t->nb[1] + i2 * t->nb[2] + i3 * t->nb[3]);
}

// One thread's share [first, last) of n.
inline std::pair<int64_t, int64_t> share(const ggml_compute_params * params, int64_t n) {
    return { n * params->ith / params->nth, n * (params->ith + 1) / params->nth };
}

} // namespace eagle3::kernels
