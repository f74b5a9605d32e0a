#include "target/graph_check.h"

#include "error.h"
#include "llama_ext.h"
#include "load_guard.h"
#include "weight_types.h"

#include "ggml-backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace eagle3 {

namespace {

// The tensor of the file that a source is, or is a view of; null if it was computed.
const ggml_tensor * weight_of(const ggml_tensor * t) {
    const ggml_tensor * root = t->view_src ? t->view_src : t;
    if (root->op != GGML_OP_NONE || !root->buffer ||
        ggml_backend_buffer_get_usage(root->buffer) != GGML_BACKEND_BUFFER_USAGE_WEIGHTS) {
        return nullptr;
    }
    return root;
}

// Can ggml compute a node with source i of this type? Operations that are not listed do not depend on types.
bool takes_source(const ggml_tensor * node, int i) {
    const ggml_type type = node->src[i]->type;
    switch (node->op) {
        case GGML_OP_MUL_MAT:
        case GGML_OP_MUL_MAT_ID: return i == 0 ? is_matrix_type(type) : i == 1 ? is_float_type(type) : true;
        case GGML_OP_GET_ROWS: return i > 0 || is_matrix_type(type) || type == GGML_TYPE_I32;
        case GGML_OP_ADD:
            if (i == 0) {
                return is_matrix_type(type);
            }
            return type == GGML_TYPE_F32 || (is_float_type(type) && type == node->src[0]->type && type == node->type);
        case GGML_OP_SUB:
        case GGML_OP_MUL:
        case GGML_OP_DIV:
            if (i == 0) {
                return is_float_type(type);
            }
            return type == GGML_TYPE_F32 || (is_float_type(type) && type == node->src[0]->type && type == node->type);
        case GGML_OP_UNARY:
        case GGML_OP_GLU:
        case GGML_OP_REPEAT:
        case GGML_OP_SCALE:
        case GGML_OP_CLAMP: return is_float_type(type);
        case GGML_OP_CPY:
        case GGML_OP_CONT:
        case GGML_OP_DUP: return is_matrix_type(type) || type == GGML_TYPE_I32;
        case GGML_OP_ADD_ID: return i < 2 ? type == GGML_TYPE_F32 : true;
        case GGML_OP_NORM:
        case GGML_OP_RMS_NORM:
        case GGML_OP_L2_NORM:
        case GGML_OP_GROUP_NORM:
        case GGML_OP_SSM_CONV:
        case GGML_OP_SQR:
        case GGML_OP_SQRT:
        case GGML_OP_SUM_ROWS: return type == GGML_TYPE_F32;
        case GGML_OP_SSM_SCAN: return i == 6 || type == GGML_TYPE_F32;
        case GGML_OP_ROPE:
        case GGML_OP_SOFT_MAX: return i != 2 || type == GGML_TYPE_F32;
        case GGML_OP_FLASH_ATTN_EXT: return i != 4 || type == GGML_TYPE_F32;
        case GGML_OP_RWKV_WKV6:
        case GGML_OP_RWKV_WKV7:
        case GGML_OP_GATED_LINEAR_ATTN:
        case GGML_OP_GATED_DELTA_NET: return type == GGML_TYPE_F32;
        default: return true;
    }
}

void check_types(const ggml_tensor * node) {
    for (int i = 0; i < GGML_MAX_SRC && node->src[i]; ++i) {
        const ggml_tensor * weight = weight_of(node->src[i]);
        if (weight && !takes_source(node, i)) {
            throw model_file_error(format("tensor '%s' has the type %s, with which ggml cannot compute %s: expected "
                                          "another, such as f32. Convert the model again.",
                                          weight->name, ggml_type_name(weight->type), ggml_op_desc(node)));
        }
    }
}

float float_param(const ggml_tensor * node, int i) {
    float value;
    memcpy(&value, node->op_params + i, sizeof(value));
    return value;
}

void check_norm(const ggml_tensor * node) {
    const bool  in_groups = node->op == GGML_OP_GROUP_NORM;
    const float eps       = float_param(node, in_groups ? 1 : 0);
    if (!(eps >= 0.0f) || !std::isfinite(eps)) {
        throw model_file_error(format("expected epsilons of norms (keys *.attention.layer_norm_rms_epsilon, "
                                      "layer_norm_epsilon, group_norm_epsilon) to be numbers >= 0, found %g",
                                      eps));
    }
    if (in_groups && node->op_params[0] <= 0) {
        throw model_file_error(
            format("key *.attention.group_norm_groups: expected 1 or more, found %d", node->op_params[0]));
    }
}

void check_rope(const ggml_tensor * node) {
    const int32_t   n_dims   = node->op_params[1];
    const int32_t   mode     = node->op_params[2];
    const int32_t * sections = node->op_params + 11;
    const int32_t   n_offset = node->op_params[15];
    if (n_dims < 0 || n_dims % 2 != 0 || n_offset % 2 != 0 || n_offset + n_dims > node->ne[0]) {
        throw model_file_error(format("expected an even number of rotated values, at most the %d of a head, found %d "
                                      "(keys *.rope.dimension_count, *.attention.key_length)",
                                      static_cast<int>(node->ne[0]), n_dims));
    }
    if (!(mode & GGML_ROPE_TYPE_MROPE)) {
        return;
    }
    const int64_t n_sections = static_cast<int64_t>(sections[0]) + sections[1] + sections[2] + sections[3];
    const bool    negative   = std::any_of(sections, sections + 4, [](int32_t n) { return n < 0; });
    if (negative || sections[0] + sections[1] + sections[2] <= 0 || n_sections > node->ne[0]) {
        throw model_file_error(
            format("key *.rope.dimension_sections: expected numbers >= 0, not all of them 0, at most "
                   "%d together, found [%d, %d, %d, %d]",
                   static_cast<int>(node->ne[0]), sections[0], sections[1], sections[2], sections[3]));
    }
}

// Checks that a recurrent state has heads, and the same number in each group.
void check_recurrent(const ggml_tensor * node) {
    for (int i = 0; i < GGML_MAX_SRC && node->src[i]; ++i) {
        if (ggml_nelements(node->src[i]) == 0) {
            throw model_file_error(format("%s of layer '%s' has no heads, or heads of no size (keys *.ssm.*, *.kda.*, "
                                          "*.wkv.*)",
                                          ggml_op_desc(node), node->name));
        }
    }
    if (node->op == GGML_OP_SSM_SCAN && node->src[1]->ne[1] % node->src[4]->ne[1] != 0) {
        throw model_file_error(format("keys *.ssm.time_step_rank and *.ssm.group_count: expected a multiple, found %d "
                                      "heads in %d groups",
                                      static_cast<int>(node->src[1]->ne[1]), static_cast<int>(node->src[4]->ne[1])));
    }
}

// Checks that a table of positions has a row for each position of the context.
void check_positions(const ggml_tensor * node, uint32_t n_ctx) {
    if (strcmp(node->src[1]->name, "inp_pos") == 0 && node->src[0]->ne[1] < static_cast<int64_t>(n_ctx)) {
        throw error(format(
            "n_ctx = %u, but the model has a table of positions (tensor '%s') with %d rows: load it with "
            "n_ctx = %d or less",
            n_ctx, node->src[0]->name, static_cast<int>(node->src[0]->ne[1]), static_cast<int>(node->src[0]->ne[1])));
    }
}

void check_node(const ggml_tensor * node, uint32_t n_ctx) {
    check_types(node);
    switch (node->op) {
        case GGML_OP_NORM:
        case GGML_OP_RMS_NORM:
        case GGML_OP_L2_NORM:
        case GGML_OP_GROUP_NORM: check_norm(node); break;
        case GGML_OP_ROPE: check_rope(node); break;
        case GGML_OP_GET_ROWS: check_positions(node, n_ctx); break;
        case GGML_OP_SSM_SCAN:
        case GGML_OP_SSM_CONV:
        case GGML_OP_RWKV_WKV6:
        case GGML_OP_RWKV_WKV7:
        case GGML_OP_GATED_LINEAR_ATTN:
        case GGML_OP_GATED_DELTA_NET:
        case GGML_OP_SOLVE_TRI: check_recurrent(node); break;
        default: break;
    }
}

} // namespace

void check_graphs(llama_context * ctx, uint32_t n_outputs_max,
                  const std::function<void(const ggml_tensor * node, int graph)> & see) {
    const uint32_t n_ctx = llama_n_ctx_seq(ctx);
    if (llama_model_n_layer(llama_get_model(ctx)) == 0) {
        return; // a vocabulary only
    }
    // the two shapes for which llama.cpp has allocated already, in its order: other shapes would change its buffers
    const uint32_t n_seqs     = llama_n_seq_max(ctx);
    const uint32_t n_tokens[] = { n_seqs, std::max(n_seqs, std::min(llama_n_ctx(ctx), llama_n_ubatch(ctx))) };
    for (int which : { 0, 1 }) {
        ggml_cgraph * graph = nullptr;
        abort_guard   guard;
        try {
            graph = llama_graph_reserve(ctx, n_tokens[which], n_seqs, std::min(n_tokens[which], n_outputs_max));
        } catch (const std::exception & e) {
            throw model_file_error(format("llama.cpp cannot build the model's graph: %s", e.what()));
        }
        for (int i = 0; graph && i < ggml_graph_n_nodes(graph); ++i) {
            check_node(ggml_graph_node(graph, i), n_ctx);
            if (see) {
                see(ggml_graph_node(graph, i), which);
            }
        }
    }
}

} // namespace eagle3
