#pragma once

#include "draft/cache.h"
#include "draft/weights.h"
#include "ggml-alloc.h"

#include <memory>

namespace eagle3 {

// What a graph of the head computes. All three are the same block; they differ in where the hidden rows come from
// and in how many rows go all the way.
enum class graph_kind {
    kv_only,  // target rows -> K/V of their slots, nothing else (prompts)
    catch_up, // target rows -> K/V, and the last row through the whole block -> first drafted token
    step,     // the recurrent state -> K/V and the next drafted token
};

struct galloc_deleter {
    void operator()(ggml_gallocr_t galloc) const { ggml_gallocr_free(galloc); }
};
using galloc_ptr = std::unique_ptr<ggml_gallocr, galloc_deleter>;

// A built and allocated graph. It can be computed again and again: only the contents of its inputs change.
struct draft_graph {
    context_ptr   ctx;
    galloc_ptr    galloc;
    ggml_cgraph * gf = nullptr;

    int32_t n_rows = 0;
    int32_t n_kv   = 0; // slots that attention sees, padded

    // inputs
    ggml_tensor * feat = nullptr; // [n_embd_feat, n_rows] F32, none for step
    ggml_tensor * embd = nullptr; // [n_embd, n_rows] F32, raw embedding of the token after each row
    ggml_tensor * pos  = nullptr; // [n_rows] I32, RoPE position
    ggml_tensor * slot = nullptr; // [n_rows] I64, where K/V are written
    ggml_tensor * mask = nullptr; // [n_kv, n_rows or 1] F16, none where nothing attends

    // outputs, none for kv_only; the recurrent state is written to the drafter's own tensor
    ggml_tensor * id     = nullptr; // [1] I32, draft vocabulary
    ggml_tensor * logits = nullptr; // [n_vocab_dft, 1] F32
};

// state: [n_embd] F32 on the device, read by step and written by catch_up and step
draft_graph build_draft_graph(graph_kind kind, int32_t n_rows, int32_t n_kv, const head_hparams & hparams,
                              const head_weights & weights, const draft_cache & cache, ggml_tensor * state,
                              const device & dev);

} // namespace eagle3
