#pragma once

#include "ggml.h"

#include <optional>

namespace eagle3::kernels {

// Which side computes an operation whose rows, when ggml computes them, depend on how many there are, and why.
struct side_of_op {
    enum class kind { product, attention, recurrence };
    enum class reason {
        ours,
        device,  // it runs on another device than the CPU
        adapter, // its weights belong to a LoRA adapter
        source,  // its weights, or the weights that its queries come from, have no kernel
        type,    // no kernel reads a cache of this type
        rows,    // the pass has more rows than kernels are used for
        shape,   // the kernel does not take tensors of this shape
    };

    kind      of;
    reason    why;
    ggml_type type; // of the weights, or of the cache
};

// The side that computes a node of a graph on whose weights kernels are registered; none if a row of the node depends
// on no other rows with either side.
std::optional<side_of_op> side_of(const ggml_tensor * node);

} // namespace eagle3::kernels
