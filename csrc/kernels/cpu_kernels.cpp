#include "kernels/cpu_kernels.h"

#include "kernels/attention.h"
#include "kernels/formats.h"
#include "kernels/product.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace eagle3::kernels {

const std::vector<const kernel *> & all() {
    static const std::vector<const kernel *> kernels = [] {
        std::vector<const kernel *> found;
#ifdef EAGLE3_HAS_KERNELS
        const std::vector<kernel> * formats[] = {
            &q4_0x8_kernels,    &q4_0_kernels,     &q4_1_kernels,     &q5_0_kernels,     &q5_1_kernels,
            &q8_0_kernels,      &q4_Kx8_kernels,   &q4_K_kernels,     &q6_K_kernels,     &q5_K_kernels,
            &q3_K_kernels,      &q2_Kx8_kernels,   &q2_K_kernels,     &iq4_nlx8_kernels, &iq4_nl_kernels,
            &iq4_xs_kernels,    &mxfp4x8_kernels,  &mxfp4_kernels,    &f16_kernels,      &bf16_kernels,
            &f32_kernels,       &nvfp4_kernels,    &iq1_s_kernels,    &iq1_m_kernels,    &iq2_xxs_kernels,
            &iq2_xs_kernels,    &iq2_s_kernels,    &iq3_xxs_kernels,  &iq3_s_kernels,    &q1_0_kernels,
            &q2_0_kernels,      &tq1_0_kernels,    &tq2_0_kernels,
#if defined(__aarch64__)
            &q4_0_4x4_kernels,  &q4_0_4x8_kernels, &q8_0_4x4_kernels, &q8_0_4x8_kernels, &q4_K_8x4_kernels,
            &q5_K_8x4_kernels,  &q5_K_8x8_kernels, &q6_K_8x4_kernels, &q6_K_8x8_kernels, &iq4_nl_4x4_kernels,
            &mxfp4_4x4_kernels,
#endif
        };
        for (const auto * format : formats) {
            for (const kernel & k : *format) {
                found.push_back(&k);
            }
        }
#endif
        return found;
    }();
    return kernels;
}

namespace {

using weights_table = std::unordered_map<const ggml_tensor *, std::shared_ptr<product>>;

// Computing threads read the table without a lock, so a table that is replaced must be kept: a few kilobytes for each
// model that is loaded or closed.
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

    // No tensor lies in a buffer of this type.
    bool supports_op(ggml_backend_dev_t, const ggml_tensor *) override { return false; }

    op_traits * get_tensor_traits(const ggml_tensor * op) override {
        const weights_table * table = table_.load(std::memory_order_acquire);
        if (!is_made_of(*table, op)) {
            return nullptr;
        }
        switch (op->op) {
            case GGML_OP_SOFT_MAX: return attention_soft_max(op);
            case GGML_OP_FLASH_ATTN_EXT: return attention_flash(op);
            case GGML_OP_GATED_DELTA_NET: return gated_delta_net(op);
            default: break;
        }
        const auto entry = table->find(op->src[0]);
        if (entry != table->end()) {
            return entry->second->takes(op) ? entry->second.get() : nullptr;
        }
        return attention_product(op);
    }

    bool has(const ggml_tensor * weight) const { return table_.load(std::memory_order_acquire)->count(weight) > 0; }

    bool is_made_of_weights(const ggml_tensor * op) const {
        return is_made_of(*table_.load(std::memory_order_acquire), op);
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

    // Does it multiply registered weights, or rows that were computed with them?
    static bool is_made_of(const weights_table & table, const ggml_tensor * op) {
        switch (op->op) {
            case GGML_OP_SOFT_MAX:
            case GGML_OP_FLASH_ATTN_EXT: return comes_from(table, op->src[0]);
            case GGML_OP_GATED_DELTA_NET: return comes_from(table, op->src[4]); // queries depend on saved states too
            case GGML_OP_MUL_MAT: return table.count(op->src[0]) || comes_from(table, op->src[1]);
            case GGML_OP_MUL_MAT_ID: return table.count(op->src[0]);
            default: return false;
        }
    }

    // Was x computed with registered weights? Then its attention is ours too.
    static bool comes_from(const weights_table & table, const ggml_tensor * x) {
        constexpr int n_steps_max = 32; // operations from a query back to the product that made it, at most
        for (int i = 0; i < n_steps_max && x && !table.empty(); ++i) {
            const bool is_product = x->op == GGML_OP_MUL_MAT || x->op == GGML_OP_MUL_MAT_ID;
            if (is_product && table.count(x->src[0])) {
                return true;
            }
            x = x->src[is_product ? 1 : 0];
        }
        return false;
    }

    static std::vector<std::unique_ptr<weights_table>> first_table() {
        std::vector<std::unique_ptr<weights_table>> tables;
        tables.push_back(std::make_unique<weights_table>());
        return tables;
    }
};

std::atomic<registry *> made{ nullptr };

// Never freed, since ggml's list keeps its address.
registry & the_registry() {
    static auto * instance = new registry;
    made.store(instance, std::memory_order_release);
    return *instance;
}

bool reads(const kernel & k, const ggml_tensor * weight) {
    const auto buft = weight->buffer->buft;
    const bool has_layout =
        k.layout == layout::repacked
            ? repacked_as(weight) == interleaving{ k.n_together, k.n_channels }
            : ggml_backend_buft_is_host(buft) && ggml_is_contiguous(weight) && buft != libggml().repack_buffer_type();
    return k.type == weight->type && has_layout && weight->ne[0] % k.n_inputs == 0 &&
           weight->ne[1] % k.n_channels == 0 && k.is_supported();
}

} // namespace

std::map<std::string, matrices> matrices_by_kernel(const matrices & weights, const row_limits & limits) {
    std::map<std::string, matrices> found;
    if (!libggml().is_complete()) {
        return found;
    }
    for (const ggml_tensor * weight : weights) {
        for (const kernel * k : all()) {
            if (weight->buffer && limits.count(k->name) && reads(*k, weight)) {
                found[k->name].push_back(weight);
                break;
            }
        }
    }
    return found;
}

bool is_computed(const ggml_tensor * weight) {
    const registry * found = made.load(std::memory_order_acquire);
    return found && found->has(weight);
}

bool is_registered(const ggml_tensor * op) {
    const registry * found = made.load(std::memory_order_acquire);
    return found && found->is_made_of_weights(op);
}

bool is_computed_by_kernel(const ggml_tensor * op) {
    registry * found = made.load(std::memory_order_acquire);
    return found && found->get_tensor_traits(op);
}

cpu_kernels::cpu_kernels(const matrices & weights, const row_limits & limits) {
    if (!libggml().is_complete()) {
        why_not_ = "this libggml-cpu does not export what kernels need";
        return;
    }
    weights_table table;
    const auto    found = matrices_by_kernel(weights, limits);
    for (const kernel * k : all()) {
        const auto entry = found.find(k->name);
        if (entry == found.end()) {
            continue;
        }
        const auto shared = std::make_shared<product>(*k, limits.at(k->name));
        for (const ggml_tensor * weight : entry->second) {
            if (table.emplace(weight, shared).second) {
                weights_.push_back(weight);
                n_weights_[k->name]++;
            }
        }
    }
    if (weights_.empty()) {
        why_not_ = "no weight of the model has a layout that a kernel for this processor reads";
        return;
    }
    the_registry().change([&](weights_table & entries) { entries.insert(table.begin(), table.end()); });
}

void cpu_kernels::close() {
    if (!weights_.empty()) {
        the_registry().change([&](weights_table & entries) {
            for (const ggml_tensor * weight : weights_) {
                entries.erase(weight);
            }
        });
        weights_.clear();
    }
}

} // namespace eagle3::kernels
