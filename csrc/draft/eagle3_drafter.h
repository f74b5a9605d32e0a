#pragma once

#include "draft/drafter.h"
#include "draft/runner.h"
#include "draft/sequence.h"
#include "kernels/cpu_kernels.h"

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

// An EAGLE-3 head with its K/V cache, P-EAGLE heads included. Each sequence is a draft_sequence; see there how rows and
// tokens are paired.
//
// begin() and propose_batch() evaluate all waiting rows in one graph, of which only the last one of each sequence goes
// all the way, and draft from there with the head's own recurrent rows. Drafted tokens use slots at n_past and above:
// they are never valid, and the next proposal overwrites them before anything attends to them.
class eagle3_drafter : public drafter {
  public:
    // ctx-independent: model_tgt only lends its tables. n_ctx: positions that each sequence may have.
    // Throws model_file_error, incompatible_draft_error.
    eagle3_drafter(const std::string & path, const llama_model * model_tgt, int32_t n_ctx,
                   const eagle3_params & params);

    const head_hparams & head() const { return hparams_; }
    const head_weights & weights() const { return weights_; }

    // Have the CPU multiply the head's own weights by our kernels. Its shared tables are the target's to say.
    void use_cpu_kernels(const kernels::row_limits & limits) {
        cpu_kernels_.reset();
        cpu_kernels_ = std::make_unique<kernels::cpu_kernels>(weights_.matrices(), limits);
    }

    const std::string & path() const override { return hparams_.path; }
    std::string         device() const override { return dev_.name(); }
    size_t              n_bytes_read() const override { return weights_.n_bytes_read; }

    std::map<std::string, int64_t> cpu_kernels() const override {
        return cpu_kernels_ ? cpu_kernels_->n_weights() : std::map<std::string, int64_t>();
    }

    int32_t n_ctx() const override { return cache_.n_ctx(); }
    int32_t n_seq_max() const override { return cache_.n_seq_max(); }

    // {n_layer + 1}, the final normed state, for a head without fc
    const std::vector<int32_t> & boundaries() const override { return boundaries_; }
    int32_t                      n_embd_feat() const override { return hparams_.n_embd_feat(); }
    int32_t                      n_pos_per_row() const override { return hparams_.n_pos(); }

    int32_t n_past(llama_seq_id seq_id) const override { return sequence(seq_id).n_past(); }
    int32_t n_waiting(llama_seq_id seq_id) const override { return sequence(seq_id).n_rows(); }

    void process(const float * rows, const llama_token * tokens, int32_t n_tokens, int32_t n_past, llama_seq_id seq_id,
                 const int32_t * row_ids, bool may_wait) override;
    void add_image(int32_t first, int32_t n_pos, const std::vector<int32_t> & pos, llama_seq_id seq_id) override;
    int32_t truncate(int32_t n_past, llama_seq_id seq_id, bool same_next) override; // see draft_sequence
    int32_t copy(llama_seq_id src, llama_seq_id dst, int32_t n_past, bool same_next) override;
    void    restart(int32_t n_past, llama_seq_id seq_id) override;

    std::vector<uint8_t> state_get(llama_seq_id seq_id) override;
    void                 state_set(const std::vector<uint8_t> & state, llama_seq_id seq_id) override;

    void set_noise(std::shared_ptr<const gumbel_noise> noise, llama_seq_id seq_id) override;

    bool    is_parallel() const override { return hparams_.is_parallel(); } // P-EAGLE
    int32_t n_unroll() const override { return n_unroll_; }
    int32_t n_expand() const override { return draft_cache::n_scratch; }

    void begin(const std::vector<llama_seq_id> & seq_ids, const std::vector<llama_token> & ids_last, int32_t top_k,
               int32_t n_steps) override;
    void expand(const std::vector<int32_t> & nodes, int32_t top_k) override;
    const std::vector<draft_node> & nodes() const override { return nodes_; }

    std::vector<std::vector<llama_token>> propose_batch(const std::vector<llama_seq_id> & seq_ids,
                                                        const std::vector<llama_token> &  ids_last,
                                                        const std::vector<int32_t> & n_max, float p_min) override;

    void                     guess_next_text() override { guesses_wanted_ = true; }
    std::vector<draft_guess> take_guesses() override;

    int64_t t_graph_us() const override { return runner_.t_graph_us; }

    size_t n_bytes_cache() const { return cache_.n_bytes(); } // of the K/V cache, which grows and shrinks

    // of the last row that went all the way, for tests and tools
    std::vector<float> logits() const { return runner_.logits(0, n_steps_last_ - 1); }
    std::vector<float> hidden_state() const { return runner_.state(state_last_); }
    int32_t            n_graph_nodes() const { return runner_.n_graph_nodes(); }

  private:
    static constexpr int32_t n_catch_up_max = 16;      // more waiting rows than this are written K/V-only
    static constexpr int32_t n_wait_max     = 128;     // rows wait for a proposal; more than this are written without
    static constexpr size_t  n_wait_bytes   = 8 << 20; // unless they may wait: then so much of each sequence does

    static constexpr int32_t n_top_llama = 10; // llama.cpp's drafter samples from the ten best logits
    static constexpr int32_t n_top_noise = 16; // candidates of which noise may make one the best

    static constexpr int32_t n_guess_max   = 8;  // rows of such a piece that guess
    static constexpr size_t  n_guesses_max = 64; // are enough, if nobody takes them

    // a sequence in a round
    struct participant {
        llama_seq_id seq_id    = 0;
        int32_t      i_call    = 0; // where it stands in the arguments
        llama_token  id_last   = 0;
        int32_t      pos       = 0; // of its last target row
        int32_t      n_used    = 0; // slots behind that
        // of a chain
        int32_t      n_left    = 0; // tokens still to be drafted
        llama_token  token     = 0; // the last one
        int32_t      state_row = 0; // its recurrent row
    };

    const draft_sequence & sequence(llama_seq_id seq_id) const;
    draft_sequence &       sequence(llama_seq_id seq_id);

    void              check_token(const char * what, llama_token token) const;
    draft_pass::row & add_row(llama_seq_id seq_id, llama_token token, int32_t pos);
    void              flush(llama_seq_id seq_id);
    void              write(llama_seq_id seq_id, int32_t n_rows, bool guess);
    void              add_guesses(llama_seq_id seq_id, int32_t n_rows);
    void              enter(const std::vector<llama_seq_id> & seq_ids, const std::vector<llama_token> & ids_last);
    void              leave();
    participant &     participant_of(llama_seq_id seq_id);
    void              compute();
    void              catch_up(int32_t n_top, int32_t n_steps);
    void              step(int32_t n_top, int32_t n_steps);
    bool              has_noise() const;
    int32_t           n_top(int32_t n) const;
    llama_token       drafted(const participant & part, int32_t i_out, int32_t i_step, float p_min);
    std::vector<draft_candidate> candidates(const participant & part, int32_t i_out, int32_t i_step, int32_t n_ahead,
                                            int32_t n_top);
    void                         expand_nodes(const std::vector<int32_t> & nodes, int32_t top_k);
    int32_t append_nodes(const participant & part, int32_t parent, const std::vector<draft_candidate> & found,
                         int32_t state);
    void    expand_ahead(int32_t top_k);
    const std::vector<draft_candidate> & ahead(int32_t i_part, int32_t depth, int32_t top_k);

    head_hparams   hparams_;
    target_tables  tables_;
    eagle3::device dev_;
    head_weights   weights_;

    std::unique_ptr<kernels::cpu_kernels> cpu_kernels_; // goes before the weights do

    draft_cache cache_;

    std::vector<rope_positions>                      positions_; // by sequence
    std::vector<std::shared_ptr<const gumbel_noise>> noise_;

    draft_runner runner_;

    std::vector<int32_t> boundaries_;
    int32_t              n_batch_;
    int32_t              n_unroll_;

    std::vector<draft_sequence> sequences_;

    bool                     guesses_wanted_ = false;
    std::vector<draft_guess> guesses_;

    // of a round; participants are ordered as they lie in the cache
    std::vector<participant> round_;
    std::vector<draft_node>  nodes_;
    struct node_place {
        int32_t state = 0;  // row of the state that the node came out of
        int32_t slot  = -1; // once it is expanded
    };
    std::vector<node_place> places_;      // of the nodes
    int32_t                 n_state_ = 0; // rows of the state in use

    draft_pass           pass_;
    std::vector<int32_t> order_; // scratch of enter and expand

    // parallel: candidates by participant and depth, found when they are asked for
    int32_t                                   n_ahead_ = 0; // depths
    std::vector<std::vector<draft_candidate>> ahead_;

    int32_t n_steps_last_ = 1;
    int32_t state_last_   = 0;
};

} // namespace eagle3
