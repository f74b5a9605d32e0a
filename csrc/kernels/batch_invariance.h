#pragma once

#include "ggml.h"

#include <optional>

namespace eagle3::kernels {

// By which side an operation is computed whose rows, as ggml computes them, depend on how many there are.
struct side_of_op {
    enum class kind { product, attention, recurrence };
    enum class reason {
        ours,
        device,  // another one than the CPU
        adapter, // its weights are of a LoRA adapter
        source,  // its weights, or those that its queries come from, have no kernel
        type,    // no kernel reads a cache of this type
        rows,    // more than kernels are used for
        shape,
    };

    kind      of;
    reason    why;
    ggml_type type; // of the weights, or of the cache
};

// Of a node of a graph on whose weights kernels are registered; none if rows do not depend on others with either side.
std::optional<side_of_op> side_of(const ggml_tensor * node);

} // namespace eagle3::kernels
