#pragma once

#include "ggml-backend.h"

#include <memory>
#include <string>

namespace eagle3 {

struct backend_deleter {
    void operator()(ggml_backend_t backend) const { ggml_backend_free(backend); }
};
struct buffer_deleter {
    void operator()(ggml_backend_buffer_t buffer) const { ggml_backend_buffer_free(buffer); }
};
struct context_deleter {
    void operator()(ggml_context * ctx) const { ggml_free(ctx); }
};

using backend_ptr = std::unique_ptr<ggml_backend, backend_deleter>;
using buffer_ptr  = std::unique_ptr<ggml_backend_buffer, buffer_deleter>;
using context_ptr = std::unique_ptr<ggml_context, context_deleter>;

// a context that holds tensor descriptions only; the data lives in backend buffers
context_ptr make_tensor_context(size_t n_tensors);

// The ggml device that the head runs on, and a backend (a stream of work) of its own on it.
class device {
  public:
    // n_gpu_layers: 0 = CPU, > 0 = the first accelerator, < 0 = where the target's lm_head is.
    // n_threads: threads of a CPU backend, ignored elsewhere.
    device(int32_t n_gpu_layers, const ggml_tensor * output_tgt, int32_t n_threads);

    ggml_backend_t             backend() const { return backend_.get(); }
    ggml_backend_dev_t         dev() const { return dev_; }
    ggml_backend_buffer_type_t buft() const { return ggml_backend_dev_buffer_type(dev_); }

    std::string name() const { return ggml_backend_dev_name(dev_); }

    // whether a graph on this device may read a tensor where it is
    bool can_read(const ggml_tensor * tensor) const;

  private:
    ggml_backend_dev_t dev_ = nullptr;
    backend_ptr        backend_;
};

} // namespace eagle3
