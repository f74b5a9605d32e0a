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

// Is a device on a ggml-rpc server?
bool is_remote(ggml_backend_dev_t dev);

// Can a weight's bytes be copied out of its buffer? Not if the CPU keeps it in a layout of its own (CPU_REPACK, AMX):
// ggml has no function for that, and calls null.
bool can_get(const ggml_tensor * tensor);

// The GPUs that llama.cpp uses by default: this machine's, or its integrated ones if it has no others.
std::vector<ggml_backend_dev_t> local_accelerators();

// The buffer types that a device's backend has for weights besides its usual one: CPU_REPACK, AMX, ...
std::vector<ggml_backend_buffer_type_t> extra_buffer_types(ggml_backend_dev_t dev);

// Keeps AMX's buffer type from models that are loaded until it is shown as often as it was hidden. Those that have its
// weights keep them.
void hide_amx();
void show_amx();

// Was llama.cpp built with ggml-rpc?
bool rpc_supported();

// The devices of a ggml-rpc server, the same ones each time. They are not registered with ggml, so only models to which
// they are passed use them. Aborts if the server cannot be reached, so that must be checked first
// (llama_cpp_eagle3/model/rpc.py).
std::vector<ggml_backend_dev_t> rpc_devices(const std::string & endpoint);

// Must be called after something was freed on a ggml-rpc server that is still in use. The server has then dropped the
// graphs that it computed last, but the client may ask for them again; the server would close the connection, and
// llama.cpp end the process. So this computes a graph of one node on each of the server's devices.
void rpc_drop_graphs(const std::string & endpoint);

} // namespace eagle3
