#pragma once

#include "drafter/sequences.h"
#include "drafters/llama_context/context_drafter.h"

#include "llama.h"

#include <map>
#include <string>
#include <vector>

namespace eagle3 {

struct mtp_params {
    int32_t n_ctx         = 0; // positions of each sequence
    int32_t n_seq_max     = 1; // sequences 0..n_seq_max - 1
    int32_t n_outputs_max = 1; // rows of a batch of the context that may have logits
};

// Drafts with a block for multi-token prediction (NextN), of the target's file or a file of its own, on an MTP context
// of llama.cpp. The block reads the target's hidden row at a position together with the next token, and then its own
// rows, as an EAGLE-3 head does; see draft_sequence for how they are paired. Slot p of a sequence is the cell at
// position p.
//
// Of n chained blocks, block i drafts token i, and the last one all further tokens. Each has a context of its own. All
// of them write the target's rows at once. A drafted path is written by the block that goes on after it, from its first
// row on, with the rows that the previous blocks made: so a block computes one node of a sequence at a time.
class mtp_drafter : public context_drafter {
  public:
    // Owns the context, and the model of a block in a file of its own (else null), even if it throws: they are freed
    // with this object, which must be before the target's model. further: the contexts of chained blocks after the
    // first one. Throws incompatible_draft_error, model_file_error.
    mtp_drafter(llama_context * ctx, llama_model * model, const std::string & path, const mtp_params & params,
                std::vector<draft_context> further = {});

    std::string device() const override { return draft_context::device_of(eh_proj_); }

    size_t n_bytes_read() const override { return n_bytes_read_; }

    const std::vector<int32_t> & boundaries() const override { return boundaries_; }
    int32_t                      n_embd_feat() const override { return n_embd_; }

    int32_t n_past(llama_seq_id seq_id) const override { return sequences_[seq_id].n_past(); }
    int32_t n_waiting(llama_seq_id seq_id) const override { return sequences_[seq_id].n_rows(); }

    void process(const float * rows, const llama_token * tokens, int32_t n_tokens, int32_t n_past, llama_seq_id seq_id,
                 const int32_t * row_ids, bool may_wait) override;

    int32_t truncate(int32_t n_past, llama_seq_id seq_id, bool same_next) override;
    int32_t copy(llama_seq_id src, llama_seq_id dst, int32_t n_past, bool same_next) override;
    void    restart(int32_t n_past, llama_seq_id seq_id) override;

    std::vector<uint8_t> state_get(llama_seq_id seq_id) override;
    void                 state_set(const std::vector<uint8_t> & state, llama_seq_id seq_id) override;

    // The block's own rows in this draft, [n][n_embd], for tests and tools.
    const std::vector<float> & hidden_state() const { return rows_out_; }

  protected:
    const draft_limits & limits() const override { return sequences_; }
    bool                 can_begin(llama_seq_id seq_id) const override { return sequences_[seq_id].n_rows() > 0; }
    int32_t              pos_begin(llama_seq_id seq_id) const override { return sequences_[seq_id].n_past() - 1; }
    int32_t              n_cells(llama_seq_id seq_id) const override { return sequences_[seq_id].n_slots(); }
    void                 flush(llama_seq_id seq_id) override;
    void                 prepare(llama_seq_id seq_id) override;
    void                 add_waiting(llama_seq_id seq_id, llama_token id_last) override;
    void                 on_caught_up(llama_seq_id seq_id, llama_token id_last) override;
    int32_t              keep_row(const draft_context & ctx, int32_t i_batch) override;
    void                 add_node(llama_seq_id id, llama_token token, int32_t pos, int32_t kept) override;
    void                 on_leave() override;
    void                 on_failed(llama_seq_id) override {} // cells after n_cells() are trimmed

    // of chained blocks
    void           compute() override;
    bool           trim(llama_seq_id seq_id) override;
    llama_seq_id   find_id(int32_t node) override;
    computed_nodes compute_nodes(std::vector<int32_t> & nodes) override;
    bool           find_output_matrices() override;

  private:
    // A chained block after the first one.
    struct further_block {
        draft_context                                ctx;
        std::map<llama_seq_id, std::vector<int32_t>> paths; // of a draft: the nodes whose rows it has written
    };

    std::vector<draft_context *> contexts(); // of all blocks, the first one first

    void find_rows_kind(llama_context * ctx, int32_t i_block);
    void write(llama_seq_id seq_id, int32_t n_rows);

    const ggml_tensor *  eh_proj_ = nullptr;
    std::vector<int32_t> boundaries_;
    int32_t              n_embd_;
    size_t               n_bytes_read_ = 0;
    uint64_t             fingerprint_  = 0;
    draft_sequences      sequences_;
    std::vector<float>   rows_out_;

    std::vector<further_block> further_;
};

} // namespace eagle3
