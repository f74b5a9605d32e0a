#include "kernels/cpu_kernels.h"

#include "ggml-backend-impl.h"
#include "ggml-cpu-impl.h"
#include "kernels/legacy_avx2.h"

#include <dlfcn.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace eagle3::kernels {

const std::vector<const kernel *> & all() {
    static const std::vector<const kernel *> kernels = {
#if defined(__x86_64__)
        // clang-format off: one a line
        &q4_0x8_avx2,
        &q4_0_avx2,
        &q4_1_avx2,
        &q5_0_avx2,
        &q5_1_avx2,
        &q8_0_avx2,
        &iq4_nlx8_avx2,
        &iq4_nl_avx2,
        &iq4_xs_avx2,
        &mxfp4x8_avx2,
        &mxfp4_avx2,
        &f16_avx2,
        &bf16_avx2,
    // clang-format on
#endif
    };
    return kernels;
}

namespace {

// ggml::cpu::tensor_traits and extra_buffer_type (ggml/src/ggml-cpu/traits.h) by the order of their virtual functions.
// ggml's own classes would have to be linked, and not every libggml has them.
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

// what libggml-cpu exports and ggml's public headers do not declare
struct libggml_cpu {
    std::vector<ggml_backend_buffer_type_t> & (*extra_buffer_types)() = nullptr;
    ggml_backend_buffer_type_t (*repack_buffer_type)()                = nullptr;
    void (*barrier)(ggml_threadpool *)                                = nullptr;

    libggml_cpu() {
        void * lib = dlopen("libggml-cpu.so.0", RTLD_NOW | RTLD_NOLOAD);
        if (!lib) {
            return;
        }
        find(lib, extra_buffer_types, "_Z39ggml_backend_cpu_get_extra_buffer_typesv");
        find(lib, repack_buffer_type, "_Z35ggml_backend_cpu_repack_buffer_typev");
        find(lib, barrier, "ggml_barrier");
    }

    bool is_complete() const { return extra_buffer_types && repack_buffer_type && barrier; }

  private:
    template <class F>
    static void find(void * lib, F & function, const char * symbol) {
        function = reinterpret_cast<F>(dlsym(lib, symbol));
    }
};

const libggml_cpu & libggml() {
    static const libggml_cpu lib;
    return lib;
}

// An operation by one kernel. Rows are quantized by all threads, then each takes its share of the channels.
class kernel_traits : public op_traits {
  public:
    kernel_traits(const kernel & k, int64_t n_rows_max_) : n_rows_max(n_rows_max_), kernel_(k) {}

    bool work_size(int /*n_threads*/, const ggml_tensor * op, size_t & size) override {
        size = op->src[1]->ne[1] * kernel_.row_size(op->src[1]->ne[0]);
        return true;
    }

    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        const ggml_tensor * w         = op->src[0];
        const ggml_tensor * x         = op->src[1];
        const int64_t       k         = x->ne[0];
        const size_t        row_bytes = kernel_.row_size(k);
        auto *              rows      = static_cast<uint8_t *>(params->wdata);
        for (int64_t r = params->ith; r < x->ne[1]; r += params->nth) {
            const auto * row = static_cast<const char *>(x->data) + r * x->nb[1];
            kernel_.quantize(reinterpret_cast<const float *>(row), k, rows + r * row_bytes);
        }
        libggml().barrier(params->threadpool);
        const int64_t n_groups = w->ne[1] / kernel_.n_channels;
        kernel_.compute(static_cast<const uint8_t *>(w->data), k, rows, x->ne[1], n_groups * params->ith / params->nth,
                        n_groups * (params->ith + 1) / params->nth, static_cast<float *>(op->data),
                        op->nb[1] / sizeof(float));
        return true;
    }

    const int64_t n_rows_max;

  private:
    const kernel & kernel_;
};

using weights_table = std::unordered_map<const ggml_tensor *, std::shared_ptr<kernel_traits>>;

// Threads that compute read the table without a lock, so that tables that were replaced are kept: one per model that
// was loaded or closed, of a few kilobytes.
class registry : public extra_buffer_type {
  public:
    registry() {
        buft_.iface.get_name = [](ggml_backend_buffer_type_t) {
            return "CPU_EAGLE3";
        };
        buft_.iface.alloc_buffer = [](ggml_backend_buffer_type_t, size_t) -> ggml_backend_buffer_t {
            return nullptr;
        };
        buft_.iface.get_alignment = [](ggml_backend_buffer_type_t) -> size_t {
            return 64;
        };
        buft_.context = static_cast<extra_buffer_type *>(this);
        auto & types  = libggml().extra_buffer_types();
        types.insert(types.begin(), &buft_);
    }

    // no tensor lies in a buffer of this type
    bool supports_op(ggml_backend_dev_t, const ggml_tensor *) override { return false; }

    op_traits * get_tensor_traits(const ggml_tensor * op) override {
        if (op->op != GGML_OP_MUL_MAT) {
            return nullptr;
        }
        const weights_table * table = table_.load(std::memory_order_acquire);
        const auto            entry = table->find(op->src[0]);
        if (entry == table->end() || op->src[0]->ne[2] != 1 || op->src[0]->ne[3] != 1) {
            return nullptr;
        }
        const ggml_tensor * x = op->src[1];
        const bool fits = x->type == GGML_TYPE_F32 && x->nb[0] == sizeof(float) && x->ne[2] == 1 && x->ne[3] == 1 &&
                          x->ne[1] <= entry->second->n_rows_max && op->type == GGML_TYPE_F32 &&
                          op->nb[0] == sizeof(float);
        return fits ? entry->second.get() : nullptr;
    }

    template <class Change>
    void change(Change && apply) {
        const std::lock_guard<std::mutex> lock(mutex_);
        auto                              table = std::make_unique<weights_table>(*tables_.back());
        apply(*table);
        table_.store(table.get(), std::memory_order_release);
        tables_.push_back(std::move(table));
    }

  private:
    ggml_backend_buffer_type                    buft_ = {};
    std::mutex                                  mutex_;
    std::vector<std::unique_ptr<weights_table>> tables_ = first_table();
    std::atomic<const weights_table *>          table_{ tables_.back().get() };

    static std::vector<std::unique_ptr<weights_table>> first_table() {
        std::vector<std::unique_ptr<weights_table>> tables;
        tables.push_back(std::make_unique<weights_table>());
        return tables;
    }
};

// never freed: ggml's list keeps its address
registry & the_registry() {
    static auto * instance = new registry;
    return *instance;
}

const kernel * find_kernel(const ggml_tensor * weight) {
    if (!weight->buffer) {
        return nullptr;
    }
    const auto buft        = weight->buffer->buft;
    const bool is_repacked = buft == libggml().repack_buffer_type();
    const bool is_mapped   = ggml_backend_buft_is_host(buft) && ggml_is_contiguous(weight);
    for (const kernel * k : all()) {
        const bool has_layout = k->layout == layout::repacked ? is_repacked : is_mapped;
        if (k->type == weight->type && has_layout && weight->ne[0] % k->n_inputs == 0 &&
            weight->ne[1] % k->n_channels == 0 && k->is_supported()) {
            return k;
        }
    }
    return nullptr;
}

} // namespace

cpu_kernels::cpu_kernels(const std::vector<const ggml_tensor *> & weights, int64_t n_rows_max) {
    if (!libggml().is_complete()) {
        why_not_ = "this libggml-cpu does not export what kernels need";
        return;
    }
    weights_table                                                      found;
    std::unordered_map<const kernel *, std::shared_ptr<kernel_traits>> traits;
    for (const ggml_tensor * weight : weights) {
        if (const kernel * k = find_kernel(weight)) {
            auto & shared = traits[k];
            if (!shared) {
                shared = std::make_shared<kernel_traits>(*k, n_rows_max);
            }
            if (found.emplace(weight, shared).second) {
                weights_.push_back(weight);
                n_weights_[k->name]++;
            }
        }
    }
    if (weights_.empty()) {
        why_not_ = "no weight of the model has a layout that a kernel for this processor reads";
        return;
    }
    the_registry().change([&](weights_table & table) { table.insert(found.begin(), found.end()); });
}

void cpu_kernels::close() {
    if (!weights_.empty()) {
        the_registry().change([&](weights_table & table) {
            for (const ggml_tensor * weight : weights_) {
                table.erase(weight);
            }
        });
        weights_.clear();
    }
}

} // namespace eagle3::kernels
