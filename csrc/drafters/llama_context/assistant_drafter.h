#pragma once

#include "drafters/llama_context/assistant_file.h"
#include "drafters/llama_context/context_drafter.h"

#include "llama.h"

#include <string>
#include <vector>

namespace eagle3 {

struct assistant_params {
    int32_t n_ctx         = 0; // positions of each sequence
    int32_t n_seq_max     = 1; // sequences 0..n_seq_max - 1
    int32_t n_outputs_max = 1; // rows of a batch of the context that may have logits
};

// Drafts with a Gemma 4 assistant: a model of a few layers that has no K/V, but attends to that of the target's last
// two layers, in the target's own cells. It reads the target's last row together with the next token, and then its own
// rows, all at the position of that token, as llama.cpp's drafter does. So no row has to be evaluated before a draft or
// removed after it, the nodes of a tree are rows of one sequence, and only the last row of a text is kept.
//
// It drafts only if the target's cells end at the position of id_last. After the text was cut there is no row until the
// target has evaluated the next token, so one step drafts nothing.
class assistant_drafter : public context_drafter {
  public:
    // Owns the context and its model, even if it throws: they are freed with this object. ctx: its ctx_other is the
    // target's, which must outlive this. Throws model_file_error, incompatible_draft_error.
    assistant_drafter(llama_context * ctx, llama_model * model, const assistant_file & file,
                      const assistant_params & params);

    std::string device() const override { return draft_context::device_of(projection_); }

    size_t n_bytes_read() const override { return n_bytes_read_; }

    const std::vector<int32_t> & boundaries() const override { return boundaries_; }
    int32_t                      n_embd_feat() const override { return n_embd_tgt_; }

    int32_t n_past(llama_seq_id seq_id) const override { return last_of(seq_id).n_past; }
    int32_t n_waiting(llama_seq_id seq_id) const override { return last_of(seq_id).row.empty() ? 0 : 1; }

    void process(const float * rows, const llama_token * tokens, int32_t n_tokens, int32_t n_past, llama_seq_id seq_id,
                 const int32_t * row_ids, bool may_wait) override;

    int32_t truncate(int32_t n_past, llama_seq_id seq_id, bool same_next) override;
    int32_t copy(llama_seq_id src, llama_seq_id dst, int32_t n_past, bool same_next) override;
    void    restart(int32_t n_past, llama_seq_id seq_id) override;

    std::vector<uint8_t> state_get(llama_seq_id seq_id) override;
    void                 state_set(const std::vector<uint8_t> & state, llama_seq_id seq_id) override;

    // Its own rows in this draft, [n][n_embd_feat], for tests and tools.
    const std::vector<float> & hidden_state() const { return rows_out_; }

  protected:
    const draft_limits & limits() const override { return limits_; }
    bool                 can_begin(llama_seq_id seq_id) const override;
    int32_t              pos_begin(llama_seq_id seq_id) const override { return n_past(seq_id); }
    int32_t              n_cells(llama_seq_id seq_id) const override { return n_past(seq_id); }
    void                 flush(llama_seq_id) override {}
    void                 prepare(llama_seq_id) override {}
    void                 add_waiting(llama_seq_id seq_id, llama_token id_last) override;
    void                 on_caught_up(llama_seq_id, llama_token) override {}
    int32_t              keep_row(const draft_context & ctx, int32_t i_batch) override;
    void                 add_node(llama_seq_id id, llama_token token, int32_t pos, int32_t kept) override;
    void                 on_leave() override { rows_out_.clear(); }
    void                 on_failed(llama_seq_id) override {}

  private:
    // All that is kept of a sequence: the row at n_past - 1, if there is one.
    struct last_row {
        int32_t            n_past = 0;
        std::vector<float> row;
    };

    const last_row & last_of(llama_seq_id seq_id) const;
    last_row &       last_of(llama_seq_id seq_id);

    int32_t               n_embd_tgt_;
    draft_limits          limits_;
    std::vector<last_row> last_;
    std::vector<int32_t>  boundaries_;
    const ggml_tensor *   projection_   = nullptr;
    size_t                n_bytes_read_ = 0;
    uint64_t              fingerprint_  = 0;
    std::vector<float>    rows_out_;
};

} // namespace eagle3
