#include "drafters/eagle3/graph.h"

#include "error.h"

#include <algorithm>
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
//
// P-EAGLE (vllm#32887): rows after the target's last one have g = fc(mask_hidden) and the mask token's embedding. They
// see all rows before them, and predict the tokens of all steps at once.
class builder {
  public:
    builder(draft_graph & graph, const draft_model & model) :
        graph(graph), shape(graph.shape), ctx(graph.ctx.get()), hparams(model.hparams), weights(model.weights),
        cache(model.cache), dev(model.dev),
        state(ggml_view_2d(ctx, model.state, hparams.n_embd, model.state->ne[1], model.state->nb[1], 0)) {}

    void build() {
        const bool from_target = shape.kind == graph_kind::kv_only || shape.kind == graph_kind::catch_up;
        const bool is_ahead    = hparams.is_parallel() && shape.n_steps > 1;

        rows first;
        first.n    = shape.n_rows;
        first.embd = graph.embd = input(GGML_TYPE_F32, hparams.n_embd, shape.n_rows);
        first.pos = graph.pos = input(GGML_TYPE_I32, static_cast<int64_t>(shape.n_rows) * hparams.n_pos());
        first.row = graph.row = input(GGML_TYPE_I64, shape.n_rows);

        ggml_tensor * g = nullptr;
        if (from_target) {
            const int32_t n_seqs = is_ahead ? shape.n_out / shape.n_steps : 0;
            const int32_t n_feat = is_ahead ? shape.n_rows - shape.n_out + n_seqs + 1 : shape.n_rows;
            graph.feat           = input(GGML_TYPE_F32, hparams.n_embd_feat(), n_feat);
            g                    = encode(graph.feat);
            if (is_ahead) {
                graph.state_in = input(GGML_TYPE_I32, shape.n_rows);
                g              = ggml_get_rows(ctx, g, graph.state_in);
            }
        } else {
            graph.state_in = input(GGML_TYPE_I32, shape.n_rows);
            g              = ggml_get_rows(ctx, state, graph.state_in);
        }

        if (from_target && hparams.n_layer > 1) {
            first.runs = find_runs([](const draft_stream & s) { return s.n_rows; });
            first.mask = graph.mask = input(GGML_TYPE_F16, n_mask(first.runs));
        }
        rows last = first;
        if (shape.kind != graph_kind::kv_only) {
            last.n    = shape.n_out;
            last.runs = find_runs([](const draft_stream & s) { return s.n_out; });
            last.mask = graph.mask_out = input(GGML_TYPE_F16, n_mask(last.runs));
            if (shape.n_out < shape.n_rows) {
                graph.out = picks_by_view() ? nullptr : input(GGML_TYPE_I32, shape.n_out);
                last.pos = graph.pos_out = input(GGML_TYPE_I32, static_cast<int64_t>(shape.n_out) * hparams.n_pos());
            }
            if (!from_target) {
                first = last;
            }
        }

        ggml_tensor * z = layers(g, first, last);
        if (shape.kind == graph_kind::kv_only) {
            return;
        }
        if (shape.kind == graph_kind::expand) {
            graph.state_out = input(GGML_TYPE_I64, shape.n_out);
        }
        g = outputs(z, 0);
        if (shape.n_steps == 1 || is_ahead) {
            return;
        }

        const int32_t n_more = shape.n_steps - 1;
        const int64_t n_pos  = static_cast<int64_t>(shape.n_out) * hparams.n_pos();
        graph.step_pos       = inputs(GGML_TYPE_I32, n_pos, n_more);
        graph.step_row       = inputs(GGML_TYPE_I64, shape.n_out, n_more);
        graph.step_mask      = inputs(GGML_TYPE_F16, n_mask(last.runs), n_more);
        for (int32_t i = 1; i < shape.n_steps; ++i) {
            rows step = last;
            step.embd = ggml_get_rows(ctx, weights.embd_dft, graph.outputs.back().id);
            step.pos  = nth(graph.step_pos, n_pos, i - 1);
            step.row  = nth(graph.step_row, shape.n_out, i - 1);
            step.mask = nth(graph.step_mask, n_mask(last.runs), i - 1);
            g         = outputs(layers(g, step, step), i);
        }
    }

  private:
    // The streams that one attention serves.
    struct run {
        int64_t base;
        int64_t stride; // rows of the cache from one stream to the next
        int32_t n_seq;
        int32_t n_rows; // of each stream
        int32_t n_kv;   // of each stream
    };

    // Rows that go through a layer together.
    struct rows {
        int64_t          n    = 0;
        ggml_tensor *    embd = nullptr;
        ggml_tensor *    pos  = nullptr;
        ggml_tensor *    row  = nullptr;
        ggml_tensor *    mask = nullptr;
        std::vector<run> runs;
    };

    template <typename F>
    std::vector<run> find_runs(F n_rows_of) const {
        std::vector<run> runs;
        for (const draft_stream & s : shape.streams) {
            const int32_t n = n_rows_of(s);
            if (!runs.empty()) {
                run &         last   = runs.back();
                const int64_t stride = last.n_seq == 1 ? s.base - last.base : last.stride;
                if (n == last.n_rows && s.n_kv == last.n_kv && stride > 0 &&
                    s.base == last.base + stride * last.n_seq) {
                    last.stride = stride;
                    last.n_seq++;
                    continue;
                }
            }
            runs.push_back({ s.base, s.n_kv, 1, n, s.n_kv });
        }
        return runs;
    }

    static int64_t n_mask(const std::vector<run> & runs) {
        int64_t n = 0;
        for (const run & run : runs) {
            n += static_cast<int64_t>(run.n_kv) * run.n_rows * run.n_seq;
        }
        return n;
    }

    ggml_tensor * input(ggml_type type, int64_t ne0, int64_t ne1 = 1) {
        ggml_tensor * tensor = ggml_new_tensor_2d(ctx, type, ne0, ne1);
        ggml_set_input(tensor);
        return tensor;
    }

    // One tensor for n_vectors inputs of n values, padded so that a view of each may begin there.
    ggml_tensor * inputs(ggml_type type, int64_t n, int64_t n_vectors) {
        return input(type, GGML_PAD(n, static_cast<int64_t>(n_aligned / ggml_type_size(type))), n_vectors);
    }

    ggml_tensor * nth(ggml_tensor * vectors, int64_t n, int64_t i) {
        return ggml_view_1d(ctx, vectors, n, i * vectors->nb[1]);
    }

    // A view, or a copy of it if an operation must not read from where it begins.
    ggml_tensor * aligned(ggml_tensor * view) { return view->view_offs % n_aligned == 0 ? view : ggml_cont(ctx, view); }

    ggml_tensor * output(ggml_tensor * tensor) {
        ggml_set_output(tensor);
        ggml_build_forward_expand(graph.gf, tensor);
        return tensor;
    }

    ggml_tensor * state_rows(int64_t first, int64_t n) {
        return ggml_view_2d(ctx, state, state->ne[0], n, state->nb[1], first * state->nb[1]);
    }

    ggml_tensor * layers(ggml_tensor * g, const rows & first, const rows & last) {
        for (int32_t il = 0; il < hparams.n_layer; ++il) {
            g = block(il, g, first, il == hparams.n_layer - 1 ? last : first);
        }
        return g;
    }

    // Adds a step's outputs, and returns the recurrent rows for the next step.
    ggml_tensor * outputs(ggml_tensor * z, int32_t i_step) {
        ggml_tensor * n = norm(z, weights.output_norm);
        draft_output  out;
        out.logits = ggml_mul_mat(ctx, weights.output, n);
        if (hparams.logit_scale != 1.0f) {
            out.logits = ggml_scale(ctx, out.logits, hparams.logit_scale);
        }
        output(out.logits);
        out.id = output(ggml_argmax(ctx, out.logits));
        if (shape.n_top > 0) {
            out.probs         = output(ggml_soft_max(ctx, out.logits));
            // the host's own search is faster than ggml's CPU kernel
            ggml_tensor * top = dev.is_host() ? nullptr : ggml_top_k(ctx, out.probs, shape.n_top);
            if (top && ggml_backend_supports_op(dev.backend(), top)) {
                ggml_tensor * probs = ggml_reshape_3d(ctx, out.probs, 1, out.probs->ne[0], shape.n_out);
                out.top             = output(top);
                out.top_p           = output(ggml_get_rows(ctx, probs, top));
            }
        }
        graph.outputs.push_back(out);

        ggml_tensor * g     = hparams.norm_output ? n : z;
        ggml_tensor * saved = nullptr;
        if (shape.kind == graph_kind::expand) {
            saved = ggml_set_rows(ctx, state, g, graph.state_out);
        } else {
            saved = ggml_cpy(ctx, g, state_rows(static_cast<int64_t>(i_step) * shape.n_out, shape.n_out));
        }
        ggml_build_forward_expand(graph.gf, saved);
        return g;
    }

    ggml_tensor * norm(ggml_tensor * x, ggml_tensor * weight) {
        return ggml_mul(ctx, ggml_rms_norm(ctx, x, hparams.rms_eps), weight);
    }

    ggml_tensor * linear(ggml_tensor * x, ggml_tensor * w, ggml_tensor * b) {
        x = ggml_mul_mat(ctx, w, x);
        return b ? ggml_add(ctx, x, b) : x;
    }

    // Is there one row that goes all the way, the last one, and may a view begin there?
    bool picks_by_view() const { return shape.n_out == 1 && hparams.n_embd * sizeof(float) % n_aligned == 0; }

    // Picks the rows that go all the way.
    ggml_tensor * pick(ggml_tensor * x) {
        if (x->ne[1] == shape.n_out) {
            return x;
        }
        return picks_by_view() ? ggml_view_2d(ctx, x, x->ne[0], 1, x->nb[1], (x->ne[1] - 1) * x->nb[1])
                               : ggml_get_rows(ctx, x, graph.out);
    }

    // Makes hidden rows of the head's width from the target's features.
    ggml_tensor * encode(ggml_tensor * x) {
        if (weights.input_norm) {
            x = norm(x, weights.input_norm);
        }
        if (weights.fc_norm) {
            const int64_t n = x->ne[1];
            x = ggml_reshape_3d(ctx, x, hparams.n_embd_tgt, static_cast<int64_t>(hparams.boundaries.size()), n);
            x = ggml_reshape_2d(ctx, norm(x, weights.fc_norm), hparams.n_embd_feat(), n);
        }
        return weights.fc ? linear(x, weights.fc, weights.fc_b) : x;
    }

    // x: [n_embd_head, n_head, n]. Channels that are rotated together are neighbours in files; here they move to the
    // two halves.
    ggml_tensor * to_halves(ggml_tensor * x) {
        const int64_t n_rot = hparams.n_rot;
        ggml_tensor * rotated =
            ggml_view_4d(ctx, x, 2, n_rot / 2, x->ne[1], x->ne[2], 2 * x->nb[0], x->nb[1], x->nb[2], 0);
        rotated =
            ggml_reshape_3d(ctx, ggml_cont(ctx, ggml_permute(ctx, rotated, 1, 0, 2, 3)), n_rot, x->ne[1], x->ne[2]);
        if (n_rot == x->ne[0]) {
            return rotated;
        }
        ggml_tensor * rest =
            ggml_view_3d(ctx, x, x->ne[0] - n_rot, x->ne[1], x->ne[2], x->nb[1], x->nb[2], n_rot * x->nb[0]);
        return ggml_concat(ctx, rotated, ggml_cont(ctx, rest), 0);
    }

    ggml_tensor * rope(ggml_tensor * x, ggml_tensor * pos) {
        if (!hparams.rope_sections.empty()) {
            int sections[4];
            std::copy_n(hparams.rope_sections.begin(), 4, sections);
            return ggml_rope_multi(ctx, to_halves(x), pos, weights.rope_freqs, hparams.n_rot, sections,
                                   hparams.rope_interleaved ? GGML_ROPE_TYPE_IMROPE : GGML_ROPE_TYPE_MROPE,
                                   hparams.rope_n_ctx_orig, hparams.rope_freq_base, hparams.rope_freq_scale,
                                   hparams.rope_ext_factor, hparams.rope_attn_factor, hparams.rope_beta_fast,
                                   hparams.rope_beta_slow);
        }
        return ggml_rope_ext(ctx, x, pos, weights.rope_freqs, hparams.n_rot, GGML_ROPE_TYPE_NORMAL,
                             hparams.rope_n_ctx_orig, hparams.rope_freq_base, hparams.rope_freq_scale,
                             hparams.rope_ext_factor, hparams.rope_attn_factor, hparams.rope_beta_fast,
                             hparams.rope_beta_slow);
    }

    // Splits x into heads, normalizes them if there are q/k norms, and rotates them.
    ggml_tensor * to_heads(ggml_tensor * x, int32_t n_head, ggml_tensor * head_norm, ggml_tensor * pos) {
        x = ggml_reshape_3d(ctx, x, hparams.n_embd_head, n_head, x->ne[1]);
        if (head_norm) {
            x = norm(x, head_norm);
        }
        return rope(x, pos);
    }

    // The slots of a run by head, [n_embd_head, n_kv, n_head_kv, n_seq], or the first n_values of each.
    ggml_tensor * cached(ggml_tensor * t, int32_t n_values, const run & run) {
        ggml_tensor * view = ggml_view_4d(ctx, t, n_values, hparams.n_head_kv, run.n_kv, run.n_seq,
                                          ggml_row_size(t->type, hparams.n_embd_head), t->nb[1], run.stride * t->nb[1],
                                          run.base * t->nb[1]);
        return ggml_permute(ctx, view, 0, 2, 1, 3);
    }

    // q: [n_embd_head, n_head, n]; returns [n_embd_head * n_head, n], with MLA [kv_lora_rank * n_head, n].
    ggml_tensor * attention(int32_t il, ggml_tensor * q, const rows & in) {
        const int32_t n_v        = hparams.is_mla() ? hparams.kv_lora_rank : hparams.n_embd_head;
        ggml_tensor * result     = nullptr;
        int64_t       first      = 0;
        int64_t       first_mask = 0;
        for (const run & run : in.runs) {
            ggml_tensor * q_run   = ggml_view_4d(ctx, q, q->ne[0], q->ne[1], run.n_rows, run.n_seq, q->nb[1], q->nb[2],
                                                 run.n_rows * q->nb[2], first * q->nb[2]);
            const size_t  n_bytes = run.n_kv * in.mask->nb[0];
            ggml_tensor * mask = ggml_view_4d(ctx, in.mask, run.n_kv, run.n_rows, 1, run.n_seq, n_bytes,
                                              run.n_rows * n_bytes, run.n_rows * n_bytes, first_mask * in.mask->nb[0]);
            ggml_tensor * out =
                attend(ggml_permute(ctx, aligned(q_run), 0, 2, 1, 3), cached(cache.k(il), hparams.n_embd_head, run),
                       cached(cache.v(il), n_v, run), mask);
            out    = ggml_reshape_2d(ctx, out, static_cast<int64_t>(n_v) * hparams.n_head,
                                     static_cast<int64_t>(run.n_rows) * run.n_seq);
            result = result ? ggml_concat(ctx, result, out, 1) : out;
            first += out->ne[1];
            first_mask += ggml_nelements(mask);
        }
        return result;
    }

    ggml_tensor * attend(ggml_tensor * q, ggml_tensor * k, ggml_tensor * v, ggml_tensor * mask) {
        const float scale =
            hparams.attn_scale > 0.0f ? hparams.attn_scale : 1.0f / sqrtf(static_cast<float>(hparams.n_embd_head));
        ggml_tensor * out = ggml_flash_attn_ext(ctx, q, k, v, mask, scale, 0.0f, 0.0f);
        ggml_prec_set_acc(out, GGML_PREC_F32);
        if (!ggml_backend_supports_op(dev.backend(), out)) {
            // the device has no flash attention for this head size or cache type
            ggml_tensor * kq = ggml_soft_max_ext(ctx, ggml_mul_mat(ctx, k, q), mask, scale, 0.0f);
            ggml_tensor * vt = ggml_cont(ctx, ggml_transpose(ctx, ggml_cast(ctx, v, GGML_TYPE_F32)));
            out              = ggml_cont(ctx, ggml_permute(ctx, ggml_mul_mat(ctx, vt, kq), 0, 2, 1, 3));
        }
        return out;
    }

    // 0.5 x (1 + tanh(u)) = x sigmoid(2 u) with u = sqrt(2 / pi) (x + 0.044715 x^3). ggml_gelu reads an F16 table,
    // which is too coarse to agree with the head's trainer.
    ggml_tensor * gelu_tanh(ggml_tensor * x) {
        const float   c = 2.0f * sqrtf(2.0f / 3.14159265f);
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

    // Multi-head latent attention, as DeepSeek's: K and V of head h are made from one row c that all heads share,
    // k = [wk_b[h] c ; k_rot] and v = wv_b[h] c. Products with them are taken in the latent space instead,
    // q k = [wk_b[h]^T q ; q_rot] [c ; k_rot], so that a slot holds only [c ; k_rot], of which V is the first part.
    ggml_tensor * latent(const head_layer & layer, ggml_tensor * x, ggml_tensor * pos) {
        const int64_t n_lora = hparams.kv_lora_rank;
        x                    = ggml_mul_mat(ctx, layer.wkv_a, x);
        ggml_tensor * c      = ggml_view_2d(ctx, x, n_lora, x->ne[1], x->nb[1], 0);
        ggml_tensor * k_rot  = ggml_view_3d(ctx, x, hparams.n_rot, 1, x->ne[1], x->nb[1], x->nb[1], n_lora * x->nb[0]);
        c                    = ggml_reshape_3d(ctx, norm(c, layer.kv_a_norm), n_lora, 1, x->ne[1]);
        return ggml_concat(ctx, c, rope(aligned(k_rot), pos), 0);
    }

    // Each head's rows by its own matrix. ggml-vulkan rounds rows that are not contiguous to F16.
    ggml_tensor * by_head(ggml_tensor * w, ggml_tensor * x) {
        return ggml_mul_mat(ctx, w, ggml_cont(ctx, ggml_permute(ctx, x, 0, 2, 1, 3)));
    }

    ggml_tensor * latent_query(const head_layer & layer, ggml_tensor * x, ggml_tensor * pos) {
        const int64_t n_nope = hparams.n_embd_nope;
        x = layer.wq_a ? ggml_mul_mat(ctx, layer.wq_b, norm(ggml_mul_mat(ctx, layer.wq_a, x), layer.q_a_norm))
                       : ggml_mul_mat(ctx, layer.wq, x);
        x = ggml_reshape_3d(ctx, x, n_nope + hparams.n_rot, hparams.n_head, x->ne[1]);

        ggml_tensor * q = ggml_view_3d(ctx, x, n_nope, x->ne[1], x->ne[2], x->nb[1], x->nb[2], 0);
        ggml_tensor * q_rot =
            ggml_view_3d(ctx, x, hparams.n_rot, x->ne[1], x->ne[2], x->nb[1], x->nb[2], n_nope * x->nb[0]);
        q = by_head(layer.wk_b, q);
        return ggml_concat(ctx, ggml_permute(ctx, q, 0, 2, 1, 3), rope(aligned(q_rot), pos), 0);
    }

    ggml_tensor * from_latent(const head_layer & layer, ggml_tensor * x) {
        const int64_t n = x->ne[1];
        x               = ggml_reshape_3d(ctx, x, hparams.kv_lora_rank, hparams.n_head, n);
        x               = by_head(layer.wv_b, x);
        return ggml_reshape_2d(ctx, ggml_cont(ctx, ggml_permute(ctx, x, 0, 2, 1, 3)), hparams.n_embd_attn(), n);
    }

    void store(ggml_tensor * slots, ggml_tensor * x, const rows & in) {
        x = ggml_reshape_2d(ctx, x, hparams.n_embd_k(), in.n);
        ggml_build_forward_expand(graph.gf, ggml_set_rows(ctx, slots, x, in.row));
    }

    // One layer: the rows `in` get K/V, and the rows `out` of them go on. Without a mask none does.
    ggml_tensor * block(int32_t il, ggml_tensor * inpL, const rows & in, const rows & out) {
        const head_layer & layer = weights.layers[il];

        ggml_tensor * residual = inpL;
        ggml_tensor * cur;
        if (il == 0) {
            ggml_tensor * g_norm = norm(inpL, layer.hidden_norm);
            residual             = hparams.norm_before_residual ? g_norm : inpL;
            cur                  = ggml_concat(ctx, norm(in.embd, layer.attn_norm), g_norm, 0);
        } else {
            cur = norm(inpL, layer.attn_norm);
        }

        if (hparams.is_mla()) {
            store(cache.k(il), latent(layer, cur, in.pos), in);
        } else {
            store(cache.k(il), to_heads(linear(cur, layer.wk, layer.bk), hparams.n_head_kv, layer.k_norm, in.pos), in);
            store(cache.v(il), linear(cur, layer.wv, layer.bv), in);
        }
        if (shape.kind == graph_kind::kv_only && il == hparams.n_layer - 1) {
            return nullptr;
        }
        if (out.n < in.n) {
            cur      = pick(cur);
            residual = pick(residual);
        }
        ggml_tensor * q    = hparams.is_mla()
                                 ? latent_query(layer, cur, out.pos)
                                 : to_heads(linear(cur, layer.wq, layer.bq), hparams.n_head, layer.q_norm, out.pos);
        ggml_tensor * attn = attention(il, q, out);
        if (hparams.is_mla()) {
            attn = from_latent(layer, attn);
        }
        ggml_tensor * y = ggml_add(ctx, linear(attn, layer.wo, layer.bo), residual);
        return ggml_add(ctx, mlp(layer, norm(y, layer.ffn_norm)), y);
    }

    draft_graph &        graph;
    const graph_shape &  shape;
    ggml_context *       ctx;
    const head_hparams & hparams;
    const head_weights & weights;
    const draft_cache &  cache;
    const device &       dev;
    ggml_tensor *        state;
};

// Throws for views at other offsets than multiples of n_aligned: some backends round these down, or assert.
void check_views(ggml_cgraph * gf) {
    for (int i = 0; i < ggml_graph_n_nodes(gf); ++i) {
        const ggml_tensor * node = ggml_graph_node(gf, i);
        if (node->op == GGML_OP_CONT || is_view(node)) {
            continue; // they read at any offset
        }
        for (const ggml_tensor * src : node->src) {
            if (src && src->view_offs % n_aligned != 0) {
                throw error(format("%s of the draft's graph reads a view at offset %zu, which is no multiple of %zu",
                                   ggml_op_desc(node), src->view_offs, n_aligned));
            }
        }
    }
}

} // namespace

draft_graph build_draft_graph(const graph_shape & shape, const draft_model & model) {
    const size_t n_streams = shape.streams.size();
    const size_t n_nodes   = 64 + shape.n_steps * (64 + (96 + 16 * n_streams) * model.hparams.n_layer);

    draft_graph graph;
    graph.shape = shape;

    const ggml_init_params params = {
        /*.mem_size   =*/ggml_tensor_overhead() * n_nodes + ggml_graph_overhead_custom(n_nodes, false),
        /*.mem_buffer =*/nullptr,
        /*.no_alloc   =*/true,
    };
    graph.ctx.reset(ggml_init(params));
    graph.gf = ggml_new_graph_custom(graph.ctx.get(), n_nodes, false);

    builder(graph, model).build();
    check_views(graph.gf);

    const device & dev = model.dev;
    for (int i = 0; i < ggml_graph_n_nodes(graph.gf); ++i) {
        const ggml_tensor * node = ggml_graph_node(graph.gf, i);
        if (!ggml_backend_supports_op(dev.backend(), node)) {
            throw error(format("device %s cannot run %s on %s for this head: load it with draft_n_gpu_layers=0",
                               dev.name().c_str(), ggml_op_desc(node),
                               node->src[0] ? ggml_type_name(node->src[0]->type) : ggml_type_name(node->type)));
        }
    }
    return graph;
}

} // namespace eagle3
