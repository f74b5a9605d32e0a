#include "draft/graph.h"

#include "error.h"

#include <cmath>

namespace eagle3 {

namespace {

// The forward pass of eagle3-style heads, after the reference code of SafeAILab/EAGLE (cnets.py) and the vLLM and
// SGLang loaders (llama_eagle3.py) for the variants:
//
//   g  = fc([norms of] the boundaries side by side)         target rows only; a recurrent row is its own g
//   e' = input_layernorm(embedding of the next token)       g' = hidden_norm(g)
//   y  = r + attention([e' ; g'])                           r = g, or g' with norm_before_residual
//   z  = y + mlp(post_attention_layernorm(y))               then plain Llama blocks, if the head has more layers
//   n  = norm(z), logits = lm_head(n)                       next recurrent row: z, or n with norm_output
class builder {
  public:
    builder(draft_graph & graph, const head_hparams & hparams, const head_weights & weights, const draft_cache & cache,
            const device & dev) :
        graph(graph), ctx(graph.ctx.get()), hparams(hparams), weights(weights), cache(cache), dev(dev) {}

    void build(graph_kind kind, ggml_tensor * state) {
        graph.embd = input(ggml_new_tensor_2d(ctx, GGML_TYPE_F32, hparams.n_embd, graph.n_rows));
        graph.pos  = input(ggml_new_tensor_1d(ctx, GGML_TYPE_I32, graph.n_rows));
        graph.slot = input(ggml_new_tensor_1d(ctx, GGML_TYPE_I64, graph.n_rows));
        if (kind != graph_kind::kv_only || hparams.n_layer > 1) {
            graph.mask =
                input(ggml_new_tensor_2d(ctx, GGML_TYPE_F16, graph.n_kv, hparams.n_layer > 1 ? graph.n_rows : 1));
        }

        ggml_tensor * g = ggml_reshape_2d(ctx, state, hparams.n_embd, 1);
        if (kind != graph_kind::step) {
            graph.feat = input(ggml_new_tensor_2d(ctx, GGML_TYPE_F32, hparams.n_embd_feat(), graph.n_rows));
            g          = encode(graph.feat);
        }

        ggml_tensor * inpL = g;
        for (int32_t il = 0; il < hparams.n_layer; ++il) {
            inpL = block(kind, il, inpL);
        }
        if (kind == graph_kind::kv_only) {
            return;
        }

        ggml_tensor * n = norm(inpL, weights.output_norm);
        graph.logits    = ggml_mul_mat(ctx, weights.output, n);
        if (hparams.logit_scale != 1.0f) {
            graph.logits = ggml_scale(ctx, graph.logits, hparams.logit_scale);
        }
        ggml_set_output(graph.logits);
        graph.id = ggml_argmax(ctx, graph.logits);
        ggml_set_output(graph.id);
        ggml_build_forward_expand(graph.gf, graph.id);
        ggml_build_forward_expand(
            graph.gf, ggml_cpy(ctx, hparams.norm_output ? n : inpL, ggml_reshape_2d(ctx, state, hparams.n_embd, 1)));
    }

  private:
    ggml_tensor * input(ggml_tensor * tensor) {
        ggml_set_input(tensor);
        return tensor;
    }

    ggml_tensor * norm(ggml_tensor * x, ggml_tensor * weight) {
        return ggml_mul(ctx, ggml_rms_norm(ctx, x, hparams.rms_eps), weight);
    }

    ggml_tensor * linear(ggml_tensor * x, ggml_tensor * w, ggml_tensor * b) {
        x = ggml_mul_mat(ctx, w, x);
        return b ? ggml_add(ctx, x, b) : x;
    }

    ggml_tensor * last_row(ggml_tensor * x) {
        return x->ne[1] == 1 ? x : ggml_view_2d(ctx, x, x->ne[0], 1, x->nb[1], (x->ne[1] - 1) * x->nb[1]);
    }

    // target features -> hidden rows of the head's width
    ggml_tensor * encode(ggml_tensor * x) {
        if (weights.input_norm) {
            x = norm(x, weights.input_norm);
        }
        if (weights.fc_norm) {
            x = ggml_reshape_3d(ctx, x, hparams.n_embd_tgt, static_cast<int64_t>(hparams.boundaries.size()),
                                graph.n_rows);
            x = ggml_reshape_2d(ctx, norm(x, weights.fc_norm), hparams.n_embd_feat(), graph.n_rows);
        }
        return weights.fc ? linear(x, weights.fc, weights.fc_b) : x;
    }

    ggml_tensor * rope(ggml_tensor * x, ggml_tensor * pos) {
        return ggml_rope_ext(ctx, x, pos, weights.rope_freqs, hparams.n_rot, GGML_ROPE_TYPE_NORMAL,
                             hparams.rope_n_ctx_orig, hparams.rope_freq_base, hparams.rope_freq_scale,
                             hparams.rope_ext_factor, hparams.rope_attn_factor, hparams.rope_beta_fast,
                             hparams.rope_beta_slow);
    }

    // split into heads, normalize them where the head has q/k norms, rotate
    ggml_tensor * to_heads(ggml_tensor * x, int32_t n_head, ggml_tensor * head_norm, ggml_tensor * pos) {
        x = ggml_reshape_3d(ctx, x, hparams.n_embd_head, n_head, x->ne[1]);
        if (head_norm) {
            x = norm(x, head_norm);
        }
        return rope(x, pos);
    }

    // rows of the cache by head: [n_embd_head, n_kv, n_head_kv]
    ggml_tensor * cached(ggml_tensor * t) {
        ggml_tensor * view = ggml_view_3d(ctx, t, hparams.n_embd_head, hparams.n_head_kv, graph.n_kv,
                                          ggml_row_size(t->type, hparams.n_embd_head), t->nb[1], 0);
        return ggml_permute(ctx, view, 0, 2, 1, 3);
    }

    ggml_tensor * attention(int32_t il, ggml_tensor * q, ggml_tensor * mask) {
        const float   scale = 1.0f / sqrtf(static_cast<float>(hparams.n_embd_head));
        const int64_t n_q   = q->ne[2];
        ggml_tensor * k     = cached(cache.k(il));
        ggml_tensor * v     = cached(cache.v(il));

        q = ggml_permute(ctx, q, 0, 2, 1, 3);

        ggml_tensor * out = ggml_flash_attn_ext(ctx, q, k, v, mask, scale, 0.0f, 0.0f);
        ggml_prec_set_acc(out, GGML_PREC_F32);
        if (!ggml_backend_supports_op(dev.backend(), out)) {
            // devices without a kernel for this head size or cache type
            ggml_tensor * kq = ggml_soft_max_ext(ctx, ggml_mul_mat(ctx, k, q), mask, scale, 0.0f);
            ggml_tensor * vt = ggml_cont(ctx, ggml_transpose(ctx, ggml_cast(ctx, v, GGML_TYPE_F32)));
            out              = ggml_cont(ctx, ggml_permute(ctx, ggml_mul_mat(ctx, vt, kq), 0, 2, 1, 3));
        }
        return ggml_reshape_2d(ctx, out, hparams.n_embd_q(), n_q);
    }

    // 0.5 x (1 + tanh(u)) = x sigmoid(2 u) with u = sqrt(2 / pi) (x + 0.044715 x^3); ggml_gelu reads an F16 table,
    // which is too coarse for a head that has to agree with its trainer
    ggml_tensor * gelu_tanh(ggml_tensor * x) {
        const float   c = 2.0f * sqrtf(2.0f / static_cast<float>(M_PI));
        ggml_tensor * u = ggml_mul(ctx, x, ggml_scale_bias(ctx, ggml_sqr(ctx, x), 0.044715f * c, c));
        return ggml_mul(ctx, x, ggml_sigmoid(ctx, u));
    }

    ggml_tensor * mlp(const head_layer & layer, ggml_tensor * x) {
        ggml_tensor * gate = linear(x, layer.ffn_gate, layer.ffn_gate_b);
        ggml_tensor * up   = linear(x, layer.ffn_up, layer.ffn_up_b);
        ggml_tensor * act  = hparams.hidden_act == "silu"   ? ggml_swiglu_split(ctx, gate, up)
                             : hparams.hidden_act == "gelu" ? ggml_geglu_erf_split(ctx, gate, up)
                                                            : ggml_mul(ctx, gelu_tanh(gate), up);
        return linear(act, layer.ffn_down, layer.ffn_down_b);
    }

    // One layer. All rows get K/V; beyond that only the rows that something still needs: all of them below the last
    // layer, the last row in it, none for kv_only.
    ggml_tensor * block(graph_kind kind, int32_t il, ggml_tensor * inpL) {
        const head_layer & layer   = weights.layers[il];
        const bool         is_last = il == hparams.n_layer - 1;

        ggml_tensor * residual = inpL;
        ggml_tensor * cur;
        if (il == 0) {
            ggml_tensor * g_norm = norm(inpL, layer.hidden_norm);
            residual             = hparams.norm_before_residual ? g_norm : inpL;
            cur                  = ggml_concat(ctx, norm(graph.embd, layer.attn_norm), g_norm, 0);
        } else {
            cur = norm(inpL, layer.attn_norm);
        }

        ggml_tensor * k = to_heads(linear(cur, layer.wk, layer.bk), hparams.n_head_kv, layer.k_norm, graph.pos);
        ggml_tensor * v = linear(cur, layer.wv, layer.bv);
        ggml_build_forward_expand(
            graph.gf,
            ggml_set_rows(ctx, cache.k(il), ggml_reshape_2d(ctx, k, hparams.n_embd_k(), graph.n_rows), graph.slot));
        ggml_build_forward_expand(graph.gf, ggml_set_rows(ctx, cache.v(il), v, graph.slot));
        if (is_last && kind == graph_kind::kv_only) {
            return nullptr;
        }

        ggml_tensor * pos  = graph.pos;
        ggml_tensor * mask = graph.mask;
        if (is_last) {
            pos      = ggml_view_1d(ctx, graph.pos, 1, (graph.n_rows - 1) * graph.pos->nb[0]);
            mask     = last_row(graph.mask);
            cur      = last_row(cur);
            residual = last_row(residual);
        }
        ggml_tensor * q = to_heads(linear(cur, layer.wq, layer.bq), hparams.n_head, layer.q_norm, pos);
        ggml_tensor * y = ggml_add(ctx, linear(attention(il, q, mask), layer.wo, layer.bo), residual);
        return ggml_add(ctx, mlp(layer, norm(y, layer.ffn_norm)), y);
    }

    draft_graph &        graph;
    ggml_context *       ctx;
    const head_hparams & hparams;
    const head_weights & weights;
    const draft_cache &  cache;
    const device &       dev;
};

} // namespace

draft_graph build_draft_graph(graph_kind kind, int32_t n_rows, int32_t n_kv, const head_hparams & hparams,
                              const head_weights & weights, const draft_cache & cache, ggml_tensor * state,
                              const device & dev) {
    const size_t n_nodes = 64 + 96 * static_cast<size_t>(hparams.n_layer);

    draft_graph graph;
    graph.n_rows = n_rows;
    graph.n_kv   = n_kv;

    const ggml_init_params params = {
        /*.mem_size   =*/ggml_tensor_overhead() * n_nodes + ggml_graph_overhead_custom(n_nodes, false),
        /*.mem_buffer =*/nullptr,
        /*.no_alloc   =*/true,
    };
    graph.ctx.reset(ggml_init(params));
    graph.gf = ggml_new_graph_custom(graph.ctx.get(), n_nodes, false);

    builder(graph, hparams, weights, cache, dev).build(kind, state);

    for (int i = 0; i < ggml_graph_n_nodes(graph.gf); ++i) {
        const ggml_tensor * node = ggml_graph_node(graph.gf, i);
        if (!ggml_backend_supports_op(dev.backend(), node)) {
            throw error(format("device %s cannot run %s on %s for this head: load it with draft_n_gpu_layers=0",
                               dev.name().c_str(), ggml_op_desc(node),
                               node->src[0] ? ggml_type_name(node->src[0]->type) : ggml_type_name(node->type)));
        }
    }

    graph.galloc.reset(ggml_gallocr_new(dev.buft()));
    if (!ggml_gallocr_alloc_graph(graph.galloc.get(), graph.gf)) {
        throw error(format("cannot allocate the draft's compute buffer on %s", dev.name().c_str()));
    }
    return graph;
}

} // namespace eagle3
