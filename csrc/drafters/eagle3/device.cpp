#include "drafters/eagle3/device.h"

#include "error.h"

namespace eagle3 {

context_ptr make_tensor_context(size_t n_tensors) {
    const ggml_init_params params = { /*.mem_size =*/ggml_tensor_overhead() * n_tensors, /*.mem_buffer =*/nullptr,
                                      /*.no_alloc =*/true };
    return context_ptr(ggml_init(params));
}

static ggml_backend_dev_t choose_device(int32_t n_gpu_layers, const ggml_tensor * output_tgt) {
    ggml_backend_dev_t dev = nullptr;
    if (n_gpu_layers < 0 && output_tgt && output_tgt->buffer) {
        dev = ggml_backend_buft_get_device(ggml_backend_buffer_get_type(output_tgt->buffer));
    }
    // a head does not need several devices that act as one (split_mode tensor)
    if (n_gpu_layers > 0 || (dev && (is_remote(dev) || ggml_backend_dev_type(dev) == GGML_BACKEND_DEVICE_TYPE_META))) {
        const auto accelerators = local_accelerators();
        dev                     = accelerators.empty() ? nullptr : accelerators.front();
    }
    // a build without accelerators runs everything on the CPU, as llama.cpp does with n_gpu_layers > 0
    return dev ? dev : ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
}

device::device(ggml_backend_dev_t dev, int32_t n_gpu_layers, const ggml_tensor * output_tgt, int32_t n_threads) :
    dev_(dev ? dev : choose_device(n_gpu_layers, output_tgt)) {
    if (!dev_) {
        throw error("ggml offers no device to run the head on");
    }
    backend_.reset(ggml_backend_dev_init(dev_, nullptr));
    if (!backend_) {
        throw error(format("cannot initialize the ggml device %s", name().c_str()));
    }
    auto set_n_threads = reinterpret_cast<ggml_backend_set_n_threads_t>(
        ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(dev_), "ggml_backend_set_n_threads"));
    if (set_n_threads) {
        set_n_threads(backend_.get(), n_threads);
    }
}

bool device::can_read(const ggml_tensor * tensor) const {
    return tensor->buffer && ggml_backend_dev_supports_buft(dev_, ggml_backend_buffer_get_type(tensor->buffer));
}

} // namespace eagle3
