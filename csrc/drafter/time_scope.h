#pragma once

#include "ggml.h"

#include <cstdint>

namespace eagle3 {

// Adds the time of a scope to a counter.
struct time_scope {
    explicit time_scope(int64_t & t_us) : t_us(t_us), t_start(ggml_time_us()) {}
    ~time_scope() { t_us += ggml_time_us() - t_start; }

    int64_t & t_us;
    int64_t   t_start;
};

} // namespace eagle3
