#pragma once

#include "draft/drafter.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace eagle3 {

// Several drafters of one target that are held as one: all see the same texts, and their sequences end at the same
// positions. A row has the hidden states that any of them reads. Drafts are the first one's; who wants another one's
// asks that one, between two calls of this one.
class joint_drafter : public drafter {
  public:
    // n_embd: of the target, the width of a hidden state. Throws incompatible_draft_error, std::invalid_argument.
    joint_drafter(std::vector<std::shared_ptr<drafter>> parts, int32_t n_embd);

    const std::string & path() const override { return first().path(); }
    std::string         device() const override; // of all, if these are several
    size_t              n_bytes_read() const override { return first().n_bytes_read(); }

    const kernels::matrices & matrices() const override { return matrices_; }
    void                      use_cpu_kernels(const kernels::row_limits & limits) override;

    std::map<std::string, int64_t> cpu_kernels() const override;

    int32_t n_ctx() const override { return first().n_ctx(); }
    int32_t n_seq_max() const override { return first().n_seq_max(); }

    const std::vector<int32_t> & boundaries() const override { return boundaries_; }
    int32_t                      n_embd_feat() const override;
    int32_t                      n_pos_per_row() const override;

    int32_t n_past(llama_seq_id seq_id) const override { return first().n_past(seq_id); }
    int32_t n_waiting(llama_seq_id seq_id) const override { return first().n_waiting(seq_id); }

    void process(const float * rows, const llama_token * tokens, int32_t n_tokens, int32_t n_past, llama_seq_id seq_id,
                 const int32_t * row_ids, int32_t may_wait) override;
    void add_image(int32_t first, int32_t n_pos, const std::vector<int32_t> & pos, llama_seq_id seq_id) override;
    int32_t truncate(int32_t n_past, llama_seq_id seq_id, bool same_next) override;
    int32_t copy(llama_seq_id src, llama_seq_id dst, int32_t n_past, bool same_next) override;
    void    restart(int32_t n_past, llama_seq_id seq_id) override;

    std::vector<uint8_t> state_get(llama_seq_id seq_id) override;
    void                 state_set(const std::vector<uint8_t> & state, llama_seq_id seq_id) override;

    void set_noise(std::shared_ptr<const gumbel_noise> noise, llama_seq_id seq_id) override;
    void set_rules(std::shared_ptr<grammar_lookahead> rules, llama_seq_id seq_id) override;

    void leave_out(const std::vector<llama_token> & tokens) override;

    bool    is_parallel() const override { return first().is_parallel(); }
    int32_t n_unroll() const override { return first().n_unroll(); }
    int32_t n_expand() const override { return first().n_expand(); }

    void begin(const std::vector<llama_seq_id> & seq_ids, const std::vector<llama_token> & ids_last, int32_t top_k,
               int32_t n_steps) override {
        first().begin(seq_ids, ids_last, top_k, n_steps);
    }

    void expand(const std::vector<int32_t> & nodes, int32_t top_k) override { first().expand(nodes, top_k); }

    const std::vector<draft_node> & nodes() const override { return first().nodes(); }

    bool has_confidence() const override { return first().has_confidence(); }

    int64_t       t_graph_us() const override;
    drafter_stats all_stats() const override;

  private:
    // one of them, and where its hidden states are in a row
    struct part {
        std::shared_ptr<drafter> own;
        std::vector<size_t>      offsets;           // of floats; empty: it reads none
        bool                     reads_all = false; // rows as they are
    };

    drafter & first() const { return *parts_.front().own; }

    int32_t       level(llama_seq_id seq_id);
    const float * rows_of(const part & p, const float * rows, int32_t n_tokens, const int32_t * row_ids);

    std::vector<part>    parts_;
    size_t               n_embd_;
    std::vector<int32_t> boundaries_; // that any of them reads, in their order
    kernels::matrices    matrices_;
    std::vector<float>   rows_; // of one of them
};

} // namespace eagle3
