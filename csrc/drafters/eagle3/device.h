#pragma once

#include "devices.h"

#include <string>

namespace eagle3 {

// Makes a context that holds only descriptions of tensors; their data is in backend buffers.
context_ptr make_tensor_context(size_t n_tensors);

// The ggml device that the head runs on, and its own backend (a stream of work) there.
class device {
  public:
    // dev: the device; nullptr = one of this machine, by n_gpu_layers: 0 = CPU, > 0 = the first accelerator, < 0 = the
    // device of the target's lm_head, or the first accelerator if that is on a ggml-rpc server.
    // n_threads: threads of a CPU backend, ignored elsewhere.
    device(ggml_backend_dev_t dev, int32_t n_gpu_layers, const ggml_tensor * output_tgt, int32_t n_threads);

    ggml_backend_t             backend() const { return backend_.get(); }
    ggml_backend_dev_t         dev() const { return dev_; }
    ggml_backend_buffer_type_t buft() const { return ggml_backend_dev_buffer_type(dev_); }

    std::string name() const { return ggml_backend_dev_name(dev_); }

    // Must be called after a buffer on it was freed while others on it stay in use.
    void on_free() const {
        if (is_remote(dev_)) {
            rpc_drop_graphs(ggml_backend_dev_description(dev_)); // its endpoint
        }
    }

    // Is its memory the host's?
    bool is_host() const { return ggml_backend_buft_is_host(buft()); }

    // Can a graph on this device read a tensor where it is?
    bool can_read(const ggml_tensor * tensor) const;

  private:
    ggml_backend_dev_t dev_ = nullptr;
    backend_ptr        backend_;
};

} // namespace eagle3
