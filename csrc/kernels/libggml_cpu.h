#pragma once

#include "ggml-backend-impl.h"
#include "ggml-cpu-impl.h"

#include <cstddef>
#include <vector>

namespace eagle3::kernels {

// ggml::cpu::tensor_traits and extra_buffer_type (ggml/src/ggml-cpu/traits.h), declared again with the same order of
// virtual functions: ggml's own classes would have to be linked, and not every libggml exports them.
struct op_traits {
    virtual ~op_traits()                                                         = default;
    virtual bool work_size(int n_threads, const ggml_tensor * op, size_t & size) = 0;
    virtual bool compute_forward(ggml_compute_params * params, ggml_tensor * op) = 0;
};

struct extra_buffer_type {
    virtual ~extra_buffer_type()                                             = default;
    virtual bool        supports_op(ggml_backend_dev_t, const ggml_tensor *) = 0;
    virtual op_traits * get_tensor_traits(const ggml_tensor * op)            = 0;
};

// Functions that libggml-cpu exports and ggml's public headers do not declare.
struct libggml_cpu {
    std::vector<ggml_backend_buffer_type_t> & (*extra_buffer_types)() = nullptr;
    ggml_backend_buffer_type_t (*repack_buffer_type)()                = nullptr;
    void (*barrier)(ggml_threadpool *)                                = nullptr;
    bool (*is_numa)()                                                 = nullptr;

    bool is_complete() const { return extra_buffer_types && repack_buffer_type && barrier && is_numa; }
};

// Those of the libggml-cpu that llama_cpp has loaded; not complete if one is missing.
const libggml_cpu & libggml();

// How ggml repacks weights: n_bytes of each of n_channels lie together, then the next n_bytes of each.
struct interleaving {
    int64_t n_bytes, n_channels;

    bool operator==(const interleaving & other) const {
        return n_bytes == other.n_bytes && n_channels == other.n_channels;
    }
};

// How this weight is repacked; zeros if it is not in ggml's buffer type for repacked weights, or if it is not known.
interleaving repacked_as(const ggml_tensor * weight);

} // namespace eagle3::kernels
