#pragma once

#include "ggml-backend.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

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

// whether a device is on a ggml-rpc server
bool is_remote(ggml_backend_dev_t dev);

// Whether a weight's bytes can be copied out of its buffer. Those that the CPU keeps in a layout of its own
// (CPU_REPACK, AMX) cannot: ggml has no function for it, and calls null
bool can_get(const ggml_tensor * tensor);

// GPUs of this machine, or its integrated ones if it has no other: what llama.cpp takes by itself
std::vector<ggml_backend_dev_t> local_accelerators();

// what a device's backend can make of weights beside its usual buffer type: CPU_REPACK, AMX, ...
std::vector<ggml_backend_buffer_type_t> extra_buffer_types(ggml_backend_dev_t dev);

// whether llama.cpp was built with ggml-rpc
bool rpc_supported();

// The devices of a ggml-rpc server, the same ones each time. They are not registered with ggml, so that only models
// that are given them use them. Aborts if the server cannot be reached: ask it before (llama_cpp_eagle3/model/rpc.py).
std::vector<ggml_backend_dev_t> rpc_devices(const std::string & endpoint);

// To be called after something was freed on a ggml-rpc server that is still in use. The server then drops the graphs
// that it computed last, while the client side still thinks that it could ask for them again; a server ends the
// connection over that, and llama.cpp the process. Computes a graph of one node on each of its devices instead.
void rpc_drop_graphs(const std::string & endpoint);

} // namespace eagle3
