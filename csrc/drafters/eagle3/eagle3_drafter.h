#pragma once

#include "drafter/drafter.h"
#include "drafters/eagle3/draft_builder.h"
#include "drafters/eagle3/draft_memory.h"
#include "drafters/eagle3/row_writer.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace eagle3 {

struct eagle3_params {
    std::vector<int32_t> boundaries;    // overrides the head's own; empty = the head's
    int32_t              n_seq_max = 1; // sequences 0..n_seq_max - 1
    int32_t              n_unroll =
        -1; // steps of a chain in one graph; -1 = 1 on the CPU, else all; a parallel head takes all anyway
    ggml_backend_dev_t dev          = nullptr;       // see device
    int32_t            n_gpu_layers = -1;            // see device
    ggml_type          type         = GGML_TYPE_F32; // see head_weights
    ggml_type          type_k       = GGML_TYPE_F16;
    ggml_type          type_v       = GGML_TYPE_F16;
    int32_t            n_threads    = 1;
    int32_t            n_batch      = 512; // rows of one K/V-only graph
};

// An EAGLE-3 head, or a P-EAGLE head, as a drafter. draft_memory holds its sequences, row_writer evaluates the rows of
// prompts, draft_builder drafts, and draft_runner computes the graphs of both.
class eagle3_drafter : public drafter {
  public:
    // model_tgt: only its tables are used. n_ctx: positions that each sequence may have. Throws model_file_error,
    // incompatible_draft_error.
    eagle3_drafter(const std::string & path, const llama_model * model_tgt, int32_t n_ctx,
                   const eagle3_params & params);

    const head_hparams & head() const { return hparams_; }
    const head_weights & weights() const { return weights_; }

    const std::string & path() const override { return hparams_.path; }
    std::string         device() const override { return dev_.name(); }
    size_t              n_bytes_read() const override { return weights_.n_bytes_read; }

    const kernels::matrices & matrices() const override { return matrices_; }

    void use_cpu_kernels(const kernels::row_limits & limits) override {
        cpu_kernels_.reset();
        cpu_kernels_ = std::make_unique<kernels::cpu_kernels>(matrices_, limits);
    }

    std::map<std::string, int64_t> cpu_kernels() const override {
        return cpu_kernels_ ? cpu_kernels_->n_weights() : std::map<std::string, int64_t>();
    }

    int32_t n_ctx() const override { return memory_.n_ctx(); }
    int32_t n_seq_max() const override { return memory_.n_seq_max(); }

    // {n_layer + 1}, the final normed state, for a head without fc
    const std::vector<int32_t> & boundaries() const override { return boundaries_; }
    int32_t                      n_embd_feat() const override { return hparams_.n_embd_feat(); }
    int32_t                      n_pos_per_row() const override { return hparams_.n_pos(); }

    int32_t n_past(llama_seq_id seq_id) const override { return memory_.sequence(seq_id).n_past(); }
    int32_t n_waiting(llama_seq_id seq_id) const override { return memory_.sequence(seq_id).n_rows(); }

    void process(const float * rows, const llama_token * tokens, int32_t n_tokens, int32_t n_past, llama_seq_id seq_id,
                 const int32_t * row_ids, bool may_wait) override;
    void add_image(int32_t first, int32_t n_pos, const std::vector<int32_t> & pos, llama_seq_id seq_id) override;
    int32_t truncate(int32_t n_past, llama_seq_id seq_id, bool same_next) override; // see draft_sequence
    int32_t copy(llama_seq_id src, llama_seq_id dst, int32_t n_past, bool same_next) override;
    void    restart(int32_t n_past, llama_seq_id seq_id) override;

    std::vector<uint8_t> state_get(llama_seq_id seq_id) override { return memory_.state_get(seq_id); }
    void                 state_set(const std::vector<uint8_t> & state, llama_seq_id seq_id) override;

    void set_noise(std::shared_ptr<const gumbel_noise> noise, llama_seq_id seq_id) override;
    void set_rules(std::shared_ptr<grammar_lookahead> rules, llama_seq_id seq_id) override;

    void leave_out(const std::vector<llama_token> & tokens) override { weights_.leave_out(tokens); }

    bool    is_parallel() const override { return hparams_.is_parallel(); } // P-EAGLE
    int32_t n_unroll() const override { return builder_.n_unroll(); }
    int32_t n_expand() const override { return draft_cache::n_scratch; }

    void begin(const std::vector<llama_seq_id> & seq_ids, const std::vector<llama_token> & ids_last, int32_t top_k,
               int32_t n_steps) override;
    void expand(const std::vector<int32_t> & nodes, int32_t top_k) override;
    const std::vector<draft_node> & nodes() const override { return builder_.nodes(); }

    int64_t t_graph_us() const override { return runner_.t_graph_us; }

    size_t n_bytes_cache() const { return memory_.cache().n_bytes(); } // of the K/V cache, which grows and shrinks

    // The logits of the last row that went through the whole head, for tests and tools.
    std::vector<float> logits() const { return runner_.last_logits(); }
    std::vector<float> hidden_state() const { return runner_.last_state(); }
    int32_t            n_graph_nodes() const { return runner_.n_graph_nodes(); }

  private:
    head_hparams   hparams_;
    target_tables  tables_;
    eagle3::device dev_;
    head_weights   weights_;

    kernels::matrices                     matrices_;
    std::unique_ptr<kernels::cpu_kernels> cpu_kernels_; // freed before the weights are

    draft_memory  memory_;
    draft_runner  runner_;
    row_writer    writer_;
    draft_builder builder_;

    std::vector<int32_t> boundaries_;
};

} // namespace eagle3
