#pragma once

#include "drafters/eagle3/cache.h"
#include "drafters/eagle3/weights.h"

#include <vector>

namespace eagle3 {

// Everything that a graph reads begins at a multiple of so many bytes, the strictest alignment of ggml's backends.
constexpr size_t n_aligned = 256;

// Does a node compute nothing?
inline bool is_view(const ggml_tensor * node) {
    return node->op == GGML_OP_RESHAPE || node->op == GGML_OP_VIEW || node->op == GGML_OP_PERMUTE ||
           node->op == GGML_OP_TRANSPOSE;
}

// The three kinds of the EAGLE-3 graph. All have the same block; they differ in where the hidden rows come from and in
// how many rows go all the way, that is, through the whole head.
enum class graph_kind {
    kv_only,  // target rows -> K/V of their slots, nothing else (prompts)
    catch_up, // target rows -> K/V, and the last row of each sequence through the whole block -> first drafted tokens
    expand,   // rows of the state -> K/V and the next drafted tokens
};

// The rows of one sequence in a graph, where they are neighbours.
struct draft_stream {
    int64_t base   = 0; // row of the cache where its slots begin
    int32_t n_kv   = 0; // slots that attention sees, padded
    int32_t n_rows = 0; // 0 if the graph does not depend on it: catch_up of a head with one layer
    int32_t n_out  = 0; // the last n_out of the rows go all the way

    bool operator==(const draft_stream & other) const {
        return base == other.base && n_kv == other.n_kv && n_rows == other.n_rows && n_out == other.n_out;
    }
};

// Everything that a graph depends on: graphs of equal shapes are the same.
struct graph_shape {
    graph_kind kind   = graph_kind::expand;
    int32_t    n_rows = 0;
    int32_t    n_out  = 0;
    int32_t    n_top  = 0; // candidates with probabilities per row; 0 = the best one, without its probability
    int32_t n_steps   = 1; // of the chain after each row; of a parallel head, rows of each sequence that go all the way

    // Empty if nothing attends. Neighbours whose bases are equally far apart and that are otherwise alike share one
    // attention.
    std::vector<draft_stream> streams;

    bool operator==(const graph_shape & o) const {
        return kind == o.kind && n_rows == o.n_rows && n_out == o.n_out && n_top == o.n_top && n_steps == o.n_steps &&
               streams == o.streams;
    }
};

// The outputs of one step for n_out rows.
struct draft_output {
    ggml_tensor * logits = nullptr; // [n_vocab_dft, n_out] F32
    ggml_tensor * id     = nullptr; // [n_out] I32, the best, in the draft vocabulary
    ggml_tensor * probs  = nullptr; // [n_vocab_dft, n_out] F32, with n_top
    ggml_tensor * top    = nullptr; // [n_top, n_out] I32 in any order; null if the host searches
    ggml_tensor * top_p  = nullptr; // [1, n_top, n_out] F32, their probabilities
};

// A built graph. It can be computed any number of times: only the contents of its inputs change.
struct draft_graph {
    graph_shape   shape;
    context_ptr   ctx;
    ggml_cgraph * gf = nullptr;

    // inputs; null if the shape does not need them
    ggml_tensor * feat     = nullptr; // [n_embd_feat, n_rows] F32; with several steps of a parallel head those of the
                                      // target's rows, and mask_hidden
    ggml_tensor * embd     = nullptr; // [n_embd, n_rows] F32, raw embedding of the token after each row
    ggml_tensor * pos      = nullptr; // [n_rows] I32, RoPE position
    ggml_tensor * row      = nullptr; // [n_rows] I64, row of the cache where K/V are written
    ggml_tensor * mask     = nullptr; // F16, n_kv values for each of the n_rows, one row after the other: of the layers
                                      // below the last one if it has fewer rows
    ggml_tensor * out      = nullptr; // [n_out] I32, which rows go all the way, where no view of the last one serves
    ggml_tensor * pos_out  = nullptr; // [n_out] I32, if those are less than n_rows
    ggml_tensor * mask_out = nullptr; // the same of the n_out
    ggml_tensor * state_in = nullptr; // [n_rows] I32, expand; with several steps of a parallel head which of feat
    ggml_tensor * state_out = nullptr; // [n_out] I64, expand

    // of the steps after the first: [n, n_steps - 1], n padded to a multiple of n_aligned bytes
    ggml_tensor * step_pos  = nullptr; // n_out I32
    ggml_tensor * step_row  = nullptr; // n_out I64
    ggml_tensor * step_mask = nullptr; // as many as mask_out has

    std::vector<draft_output> outputs; // one per step, none for kv_only; a parallel head has one for all of them
};

// The tensors that graphs use. The state [n_embd, n], whose rows are padded to a multiple of n_aligned bytes, holds
// recurrent rows: in catch_up step i of row r writes row i * n_out + r (a parallel head: r * n_steps + i); in expand
// the rows to read and write are inputs.
struct draft_model {
    const head_hparams & hparams;
    const head_weights & weights;
    const draft_cache &  cache;
    const device &       dev;
    ggml_tensor *        state;
};

// Builds a graph, whose tensors have no memory yet.
draft_graph build_draft_graph(const graph_shape & shape, const draft_model & model);

} // namespace eagle3
