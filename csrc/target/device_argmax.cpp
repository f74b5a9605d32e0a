#include "target/device_argmax.h"

#include "error.h"
#include "ggml-backend.h"
#include "lm_head.h"

namespace eagle3 {

bool logits_are_remote(const llama_model * model) {
    const ggml_tensor * output = find_lm_head(model);
    return output && output->buffer && !ggml_backend_buffer_is_host(output->buffer);
}

namespace {

void apply_on_host(llama_sampler *, llama_token_data_array * cur_p) {
    cur_p->selected = 0;
    for (size_t i = 1; i < cur_p->size; ++i) {
        if (cur_p->data[i].logit > cur_p->data[cur_p->selected].logit) {
            cur_p->selected = static_cast<int64_t>(i);
        }
    }
}

// Makes the index in the row + 1. For a row of NaN it is 0 or less, since no comparison with NaN is true.
ggml_tensor * add_argmax(ggml_context * ctx, ggml_tensor * logits) {
    constexpr float low   = -1e30f;
    ggml_tensor *   first = ggml_arange(ctx, low, 0.0f, -low); // one number
    return ggml_argmax(ctx, ggml_concat(ctx, first, ggml_reshape_1d(ctx, logits, ggml_nelements(logits)), 0));
}

bool backend_init(llama_sampler *, ggml_backend_buffer_type_t buft, uint32_t) {
    const ggml_init_params params = { /*.mem_size =*/8 * ggml_tensor_overhead(), /*.mem_buffer =*/nullptr,
                                      /*.no_alloc =*/true };
    ggml_context *         ctx    = ggml_init(params);
    add_argmax(ctx, ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 128 * 1024));
    ggml_backend_dev_t dev = ggml_backend_buft_get_device(buft);
    bool               res = true;
    for (ggml_tensor * t = ggml_get_first_tensor(ctx); dev && t; t = ggml_get_next_tensor(ctx, t)) {
        res &= t->op == GGML_OP_NONE || ggml_backend_dev_supports_op(dev, t); // no device: plain host memory
    }
    ggml_free(ctx);
    return res;
}

void backend_apply(llama_sampler *, ggml_context * ctx, ggml_cgraph *, llama_sampler_data * data) {
    data->sampled = add_argmax(ctx, data->logits);
    data->logits  = nullptr; // llama.cpp would copy these to the host
}

llama_sampler_i make_interface() {
    llama_sampler_i iface = {};
    iface.name            = [](const llama_sampler *) {
        return "device-argmax";
    };
    iface.apply         = apply_on_host;
    iface.backend_init  = backend_init;
    iface.backend_apply = backend_apply;
    return iface;
}

} // namespace

void device_argmax::attach(llama_context * ctx, int32_t n_outputs_) {
    static llama_sampler_i iface = make_interface();

    detach(ctx);
    const auto n_seq = static_cast<llama_seq_id>(llama_n_seq_max(ctx));
    for (llama_seq_id s = 0; s < n_seq; ++s) {
        // llama.cpp initializes a chain only once, so each attachment needs new ones
        chains.push_back(llama_sampler_chain_init(llama_sampler_chain_default_params()));
        llama_sampler_chain_add(chains.back(), llama_sampler_init(&iface, nullptr));
        if (!llama_set_sampler(ctx, s, chains.back())) {
            detach(ctx);
            throw error("the target's device cannot take the argmax of its logits itself");
        }
    }
    n_outputs = n_outputs_;
}

void device_argmax::detach(llama_context * ctx) {
    for (size_t s = 0; s < chains.size(); ++s) {
        llama_set_sampler(ctx, static_cast<llama_seq_id>(s), nullptr);
    }
    free_chains();
}

void device_argmax::free_chains() {
    for (llama_sampler * chain : chains) {
        llama_sampler_free(chain);
    }
    chains.clear();
}

} // namespace eagle3
