#pragma once

#include "draft/graph.h"

#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace eagle3 {

struct drafter_params {
    std::vector<int32_t> boundaries;             // overrides the head's own; empty = the head's
    ggml_backend_dev_t   dev          = nullptr; // see device
    int32_t              n_gpu_layers = -1;      // see device
    ggml_type            type_k       = GGML_TYPE_F16;
    ggml_type            type_v       = GGML_TYPE_F16;
    int32_t              n_threads    = 1;
    int32_t              n_batch      = 512; // rows of one K/V-only graph
};

struct drafter_stats {
    int64_t t_process_us = 0; // taking rows in, K/V of prompts
    int64_t t_propose_us = 0; // drafting
    int64_t t_graph_us   = 0; // of both: inside ggml
    int64_t n_propose    = 0;
    int64_t n_steps      = 0; // graphs that drafted a token
};

// Drafts tokens for one sequence.
//
// Pairing. Slot p of the cache holds the pair (token at p + 1, hidden row at p) and has RoPE position p. The last row
// of a target batch therefore waits: its slot can only be written when the next token is known. Rows that arrived and
// are not yet in the cache wait in `rows`:
//
//   position   0 ........ pos_first-1 | pos_first ............ n_past-1 |
//   row        in the cache           | in `rows`                       |
//   token      -                      | in `tokens`, one per row        | id_last, given to propose()
//
// process() appends rows; propose(id_last) writes all of them (one catch-up graph, only the last row goes all the way)
// and drafts from there with the head's own recurrent rows. The slots that drafting writes lie at n_past and above:
// they are never valid and the next catch-up overwrites them before anything attends to them. The last row stays in
// `rows` after propose(), marked as `seeded` with id_last, so that taking back the proposal never needs the target
// again.
class drafter {
  public:
    // ctx-independent: model_tgt only lends its tables. Throws model_file_error, incompatible_draft_error.
    drafter(const std::string & path, const llama_model * model_tgt, int32_t n_ctx, const drafter_params & params);

    const head_hparams & head() const { return hparams_; }
    const head_weights & weights() const { return weights_; }
    const device &       dev() const { return dev_; }

    // boundaries of the target that rows are made of; {n_layer + 1}, the final normed state, for a head without fc
    const std::vector<int32_t> & boundaries() const { return boundaries_; }

    int32_t n_ctx() const { return cache_.n_ctx(); }
    int32_t n_past() const { return pos_first_ + static_cast<int32_t>(tokens_.size()); }

    // take rows of the target in: rows [n_tokens, n_embd_feat] belong to tokens at positions n_past..n_past + n_tokens
    // - 1
    void process(const float * rows, const llama_token * tokens, int32_t n_tokens, int32_t n_past);

    // draft up to n_max tokens that may follow id_last, the token at position n_past(). Stops before a token whose
    // probability among the ten best is below p_min, as llama.cpp does. Empty without a waiting row or room.
    std::vector<llama_token> propose(llama_token id_last, int32_t n_max, float p_min);

    // forget positions >= n_past. Returns the position from which rows must be processed again: n_past, or n_past - 1
    // if the row before it is gone, since that one waits for another token now.
    int32_t truncate(int32_t n_past);

    void reset() { truncate(0); }

    std::vector<uint8_t> state_get() const;
    void                 state_set(const std::vector<uint8_t> & state);

    // of the last drafted token, for tests and tools
    std::vector<float> logits() const;
    std::vector<float> hidden_state() const;

    size_t n_bytes_cache() const { return cache_.n_bytes(); }

    drafter_stats stats;

  private:
    static constexpr int32_t n_catch_up_max = 16; // more waiting rows than this are written K/V-only
    static constexpr size_t  n_graphs_max   = 24;

    draft_graph & get_graph(graph_kind kind, int32_t n_rows, int32_t n_kv);
    void          set_inputs(draft_graph & graph, const float * feat, const llama_token * next, int32_t pos);
    void          compute(draft_graph & graph);
    void          flush();
    llama_token   drafted(const draft_graph & graph, float p_min);

    head_hparams  hparams_;
    target_tables tables_;
    device        dev_;
    head_weights  weights_;
    draft_cache   cache_;

    std::vector<int32_t> boundaries_;
    int32_t              n_batch_;

    context_ptr   state_ctx_;
    buffer_ptr    state_buffer_;
    ggml_tensor * state_ = nullptr; // the recurrent row, [n_embd]

    // see Pairing
    int32_t                    pos_first_ = 0;
    std::vector<float>         rows_;
    std::vector<llama_token>   tokens_;
    std::optional<llama_token> seeded_; // rows_ is one row, in the cache already with this token

    struct cached_graph {
        graph_kind  kind;
        draft_graph graph;
    };
    std::deque<cached_graph> graphs_; // most recently built first
    const draft_graph *      last_ = nullptr;

    // scratch of set_inputs and drafted
    std::vector<float>       embd_;
    std::vector<int32_t>     pos_;
    std::vector<int64_t>     slot_;
    std::vector<ggml_fp16_t> mask_;
    std::vector<float>       logits_;
};

} // namespace eagle3
