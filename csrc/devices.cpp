#include "devices.h"

#include "error.h"

#include <algorithm>
#include <cstring>
#include <mutex>

namespace eagle3 {

bool is_remote(ggml_backend_dev_t dev) {
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(dev);
    return reg && strcmp(ggml_backend_reg_name(reg), "RPC") == 0;
}

// The list that llama.cpp reads whenever it loads a model, ended by null; null if there is none.
static ggml_backend_buffer_type_t * list_of_extra(ggml_backend_dev_t dev) {
    ggml_backend_reg_t reg       = ggml_backend_dev_backend_reg(dev);
    auto               get_extra = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(
        reg ? ggml_backend_reg_get_proc_address(reg, "ggml_backend_dev_get_extra_bufts") : nullptr);
    return get_extra ? get_extra(dev) : nullptr;
}

std::vector<ggml_backend_buffer_type_t> extra_buffer_types(ggml_backend_dev_t dev) {
    std::vector<ggml_backend_buffer_type_t> bufts;
    for (auto * buft = list_of_extra(dev); buft && *buft; ++buft) {
        bufts.push_back(*buft);
    }
    return bufts;
}

// While AMX is hidden it lies behind the null that ends the list: then place is where it was.
static struct {
    std::mutex                   mutex;
    size_t                       n_hiding = 0;
    ggml_backend_buffer_type_t * list     = nullptr;
    size_t                       place = 0, end = 0;
} amx;

void hide_amx() {
    const std::lock_guard lock(amx.mutex);
    if (amx.n_hiding++ > 0) {
        return;
    }
    const auto types = extra_buffer_types(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU));
    const auto found = std::find_if(types.begin(), types.end(), [](ggml_backend_buffer_type_t type) {
        return strcmp(ggml_backend_buft_name(type), "AMX") == 0;
    });
    if (found != types.end()) {
        amx.list  = list_of_extra(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU));
        amx.place = static_cast<size_t>(found - types.begin());
        amx.end   = types.size() + 1;
        std::rotate(amx.list + amx.place, amx.list + amx.place + 1, amx.list + amx.end);
    }
}

void show_amx() {
    const std::lock_guard lock(amx.mutex);
    if (--amx.n_hiding == 0 && amx.list) {
        std::rotate(amx.list + amx.place, amx.list + amx.end - 1, amx.list + amx.end);
        amx.list = nullptr;
    }
}

bool can_get(const ggml_tensor * tensor) {
    const ggml_backend_dev_t dev    = ggml_backend_buft_get_device(ggml_backend_buffer_get_type(tensor->buffer));
    const bool               is_cpu = dev == nullptr || ggml_backend_dev_type(dev) == GGML_BACKEND_DEVICE_TYPE_CPU;
    return !is_cpu || ggml_backend_buffer_is_host(tensor->buffer);
}

std::vector<ggml_backend_dev_t> local_accelerators() {
    std::vector<ggml_backend_dev_t> gpus;
    std::vector<ggml_backend_dev_t> igpus;
    std::vector<std::string>        ids; // two backends may offer the same GPU
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        ggml_backend_dev_t dev  = ggml_backend_dev_get(i);
        const auto         type = ggml_backend_dev_type(dev);
        if (is_remote(dev) || (type != GGML_BACKEND_DEVICE_TYPE_GPU && type != GGML_BACKEND_DEVICE_TYPE_IGPU)) {
            continue;
        }
        if (type == GGML_BACKEND_DEVICE_TYPE_IGPU) {
            if (igpus.empty() || ggml_backend_dev_backend_reg(dev) == ggml_backend_dev_backend_reg(igpus.back())) {
                igpus.push_back(dev);
            }
            continue;
        }
        ggml_backend_dev_props props;
        ggml_backend_dev_get_props(dev, &props);
        if (props.device_id) {
            if (std::find(ids.begin(), ids.end(), props.device_id) != ids.end()) {
                continue;
            }
            ids.emplace_back(props.device_id);
        }
        gpus.push_back(dev);
    }
    return gpus.empty() ? igpus : gpus;
}

static ggml_backend_reg_t (*find_add_server())(const char * endpoint) {
    ggml_backend_reg_t reg = ggml_backend_reg_by_name("RPC");
    return reg ? reinterpret_cast<ggml_backend_reg_t (*)(const char *)>(
                     ggml_backend_reg_get_proc_address(reg, "ggml_backend_rpc_add_server"))
               : nullptr;
}

bool rpc_supported() {
    return find_add_server() != nullptr;
}

std::vector<ggml_backend_dev_t> rpc_devices(const std::string & endpoint) {
    const auto add_server = find_add_server();
    if (!add_server) {
        throw error("llama.cpp was built without ggml-rpc");
    }
    std::vector<ggml_backend_dev_t> devs;
    if (ggml_backend_reg_t reg = add_server(endpoint.c_str())) {
        for (size_t i = 0; i < ggml_backend_reg_dev_count(reg); ++i) {
            devs.push_back(ggml_backend_reg_dev_get(reg, i));
        }
    }
    return devs;
}

void rpc_drop_graphs(const std::string & endpoint) {
    for (ggml_backend_dev_t dev : rpc_devices(endpoint)) {
        const ggml_init_params params = { /*.mem_size =*/2 * ggml_tensor_overhead() +
                                              ggml_graph_overhead_custom(1, false),
                                          /*.mem_buffer =*/nullptr, /*.no_alloc =*/true };
        const context_ptr      ctx(ggml_init(params));
        const backend_ptr      backend(ggml_backend_dev_init(dev, nullptr));
        ggml_cgraph *          gf = ggml_new_graph_custom(ctx.get(), 1, false);
        ggml_tensor *          x  = ggml_new_tensor_1d(ctx.get(), GGML_TYPE_F32, 1);
        ggml_build_forward_expand(gf, ggml_scale(ctx.get(), x, 1.0f));
        const buffer_ptr buffer(ggml_backend_alloc_ctx_tensors(ctx.get(), backend.get()));
        if (!buffer || ggml_backend_graph_compute(backend.get(), gf) != GGML_STATUS_SUCCESS) {
            throw error(format("cannot compute on %s (%s)", ggml_backend_dev_name(dev), endpoint.c_str()));
        }
    }
}

} // namespace eagle3
