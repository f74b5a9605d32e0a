#include "kernels/batch_invariance.h"

#include "kernels/attention.h"
#include "kernels/cpu_kernels.h"

#include "ggml-backend.h"

#include <cstring>

namespace eagle3::kernels {

namespace {

using kind   = side_of_op::kind;
using reason = side_of_op::reason;

bool is_on_device(const ggml_tensor * t) {
    const ggml_tensor * root   = t->view_src ? t->view_src : t;
    const auto          device = root->buffer ? ggml_backend_buft_get_device(root->buffer->buft) : nullptr;
    return device && ggml_backend_dev_type(device) != GGML_BACKEND_DEVICE_TYPE_CPU;
}

bool is_of_adapter(const ggml_tensor * t) { // by llama.cpp's names
    return std::strstr(t->name, ".lora_a") || std::strstr(t->name, ".lora_b");
}

// Is it the rotation of a quantized cache? ggml computes that row by row.
bool is_hadamard(const ggml_tensor * node) {
    constexpr int32_t hint = 1; // GGML_HINT_SRC0_IS_HADAMARD
    return node->op == GGML_OP_MUL_MAT && node->op_params[1] == hint;
}

bool is_weight(const ggml_tensor * t) {
    const ggml_tensor * root = t->view_src ? t->view_src : t;
    return root->op == GGML_OP_NONE && root->buffer &&
           ggml_backend_buffer_get_usage(root->buffer) == GGML_BACKEND_BUFFER_USAGE_WEIGHTS;
}

// The number of rows that a matrix is multiplied by.
int64_t n_rows(const ggml_tensor * node) {
    const ggml_tensor * w = node->src[0];
    return node->op == GGML_OP_MUL_MAT_ID ? node->src[2]->ne[1] : ggml_nrows(node->src[1]) / (w->ne[2] * w->ne[3]);
}

reason why_not_product(const ggml_tensor * node) {
    const ggml_tensor * w = node->src[0];
    return !is_weight(w)                         ? reason::adapter
           : is_on_device(w)                     ? reason::device
           : !is_computed(w)                     ? reason::source
           : n_rows(node) > N_ATTENTION_ROWS_MAX ? reason::rows
                                                 : reason::shape;
}

// node: K times queries, values times probabilities, or flash attention.
reason why_not_attention(const ggml_tensor * node) {
    const bool          is_flash = node->op == GGML_OP_FLASH_ATTN_EXT;
    const ggml_tensor * cache    = node->src[is_flash ? 1 : 0];
    const ggml_tensor * x        = node->src[is_flash ? 0 : 1];
    return is_on_device(cache)                                       ? reason::device
           : !is_registered(node)                                    ? reason::source
           : !is_flash && ggml_is_quantized(cache->type)             ? reason::type
           : !is_flash && x->ne[1] * x->ne[3] > N_ATTENTION_ROWS_MAX ? reason::rows
                                                                     : reason::shape;
}

reason why_not_recurrence(const ggml_tensor * node) {
    return is_registered(node) ? reason::shape : reason::source;
}

} // namespace

std::optional<side_of_op> side_of(const ggml_tensor * node) {
    const auto side = [&](kind of, reason (*why_not)(const ggml_tensor *), const ggml_tensor * w) {
        return side_of_op{ of, is_computed_by_kernel(node) ? reason::ours : why_not(node), w->type };
    };
    if (is_hadamard(node)) {
        return std::nullopt;
    }
    switch (node->op) {
        case GGML_OP_MUL_MAT:
        case GGML_OP_MUL_MAT_ID:
            return is_weight(node->src[0]) || is_of_adapter(node->src[0])
                       ? side(kind::product, why_not_product, node->src[0])
                       : side(kind::attention, why_not_attention, node->src[0]);
        case GGML_OP_FLASH_ATTN_EXT: return side(kind::attention, why_not_attention, node->src[1]);
        case GGML_OP_GATED_DELTA_NET: return side(kind::recurrence, why_not_recurrence, node->src[2]);
        default: return std::nullopt;
    }
}

} // namespace eagle3::kernels
