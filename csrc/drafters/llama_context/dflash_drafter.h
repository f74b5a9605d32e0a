#pragma once

#include "drafter/draft_nodes.h"
#include "drafter/drafter.h"
#include "drafter/foresight.h"
#include "drafter/sequences.h"
#include "drafters/llama_context/dflash_file.h"
#include "drafters/llama_context/draft_context.h"

#include "llama.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace eagle3 {

struct dflash_params {
    int32_t n_ctx     = 0; // positions of each sequence
    int32_t n_seq_max = 1; // sequences 0..n_seq_max - 1
};

// Drafts with a block drafter: a model of its own, whose context is its K/V cache and its graphs. The context evaluates
// two kinds of batches. Rows of the target become K/V at their positions, once each. A block is the token at n_past and
// copies of a mask token after it: all its rows see each other and what lies before, and row i predicts the token i
// positions later. So one pass drafts as many tokens as the block is long, and a shorter block takes less time.
//
// A row's prediction depends on block_kind. In dflash it does not depend on the drafted tokens before it. In dspark it
// follows the best token of each earlier row, and nodes of other paths get the same. In dflash2 it depends on the token
// of the row before, so that the children of each node have other probabilities and another order.
//
// A row can be evaluated without its next token. Rows wait all the same, as many together take less time and the gate
// may be closed for a while. Cells of a block lie after the sequence's, and are removed before anything else is
// written.
class dflash_drafter : public drafter {
  public:
    // Owns model and context, even if it throws: they are freed with this object, which must be before the target,
    // whose tables they may use. Throws incompatible_draft_error, model_file_error.
    dflash_drafter(llama_model * model, llama_context * ctx, const llama_model * model_tgt,
                   const dflash_hparams & hparams, const dflash_params & params);

    const dflash_hparams & hparams() const { return hparams_; }

    const std::string & path() const override { return hparams_.path; }
    std::string         device() const override { return draft_context::device_of(matrices().front()); }
    size_t              n_bytes_read() const override { return n_bytes_read_; }

    const kernels::matrices & matrices() const override { return ctx_.matrices(); }

    void use_cpu_kernels(const kernels::row_limits & limits) override { ctx_.use_cpu_kernels(limits); }

    std::map<std::string, int64_t> cpu_kernels() const override { return ctx_.cpu_kernels(); }

    int32_t n_ctx() const override { return sequences_.n_ctx(); }
    int32_t n_seq_max() const override { return sequences_.n_seq_max(); }

    const std::vector<int32_t> & boundaries() const override { return hparams_.boundaries; }
    int32_t                      n_embd_feat() const override { return hparams_.n_embd_feat(); }

    int32_t n_past(llama_seq_id seq_id) const override { return sequences_[seq_id].n_past(); }
    int32_t n_waiting(llama_seq_id seq_id) const override { return sequences_[seq_id].n_rows(); }

    void process(const float * rows, const llama_token * tokens, int32_t n_tokens, int32_t n_past, llama_seq_id seq_id,
                 const int32_t * row_ids, bool may_wait) override;

    // Rows are always appended from n_past on.
    int32_t truncate(int32_t n_past, llama_seq_id seq_id, bool same_next) override;
    int32_t copy(llama_seq_id src, llama_seq_id dst, int32_t n_past, bool same_next) override;
    void    restart(int32_t n_past, llama_seq_id seq_id) override;

    std::vector<uint8_t> state_get(llama_seq_id seq_id) override;
    void                 state_set(const std::vector<uint8_t> & state, llama_seq_id seq_id) override;

    void set_noise(std::shared_ptr<const gumbel_noise> noise, llama_seq_id seq_id) override;
    void set_rules(std::shared_ptr<grammar_lookahead> rules, llama_seq_id seq_id) override;

    void leave_out(const std::vector<llama_token> & tokens) override { left_out_ = tokens; }

    bool    is_parallel() const override { return true; }
    bool    has_confidence() const override { return hparams_.has_confidence || hparams_.kind == block_kind::dflash2; }
    int32_t n_unroll() const override { return hparams_.n_draft_max(); }
    int32_t n_expand() const override { return n_expand_max; }

    void begin(const std::vector<llama_seq_id> & seq_ids, const std::vector<llama_token> & ids_last, int32_t top_k,
               int32_t n_steps) override;
    void expand(const std::vector<int32_t> & nodes, int32_t top_k) override;

    const std::vector<draft_node> & nodes() const override { return nodes_.all(); }

    int64_t t_graph_us() const override { return t_graph_us_; }

    // The logits of all rows of the last pass over blocks, for tests and tools; dflash2 has none.
    std::vector<float> block_logits() const;

    static constexpr int32_t n_expand_max = 32; // expanded nodes of a sequence in a draft, which take no time here

  private:
    // What a row of a block predicts.
    struct drafted_row {
        std::vector<draft_candidate> found;   // the best first
        std::vector<float>           lattice; // dflash2: candidates, and their scores after each candidate of the row
                                              // before
    };

    // A sequence in a draft.
    struct participant {
        llama_seq_id seq_id  = 0;
        llama_token  id_last = 0;

        const foresight *        known = nullptr;
        std::vector<drafted_row> levels; // by depth
    };

    int32_t n_rows_of_block(int32_t n_steps) const { return n_steps + (hparams_.sample_from_anchor ? 0 : 1); }

    void                         add_rows(llama_seq_id seq_id, int32_t n);
    void                         compute_rows();
    void                         take_in(llama_seq_id seq_id, int32_t n);
    void                         take_in_all();
    void                         flush(llama_seq_id seq_id);
    void                         add_block(llama_seq_id seq_id, llama_token id_last, int32_t n_steps);
    void                         compute_blocks();
    drafted_row                  read_row(const foresight & known, int32_t i_row, int32_t n_top);
    std::vector<draft_candidate> best_after(const participant & part, const std::vector<llama_token> & path,
                                            int32_t n_top);
    std::vector<draft_candidate> candidates(int32_t i_row, int32_t n_top);

    void                enter(const std::vector<llama_seq_id> & seq_ids, const std::vector<llama_token> & ids_last);
    void                leave();
    void                draft(int32_t top_k, int32_t n_steps);
    void                append_nodes(const participant & part, int32_t parent, int32_t top_k);
    const participant & participant_of(llama_seq_id seq_id) const;

    draft_context  ctx_;
    dflash_hparams hparams_;
    int32_t        n_batch_;
    int32_t        n_pos_; // of a row of the target: 4 with M-RoPE
    size_t         n_bytes_read_ = 0;
    uint64_t       fingerprint_  = 0;

    draft_sequences          sequences_;
    std::vector<foresight>   foresight_;
    std::vector<llama_token> left_out_; // see leave_out

    // of a draft
    std::vector<participant> participants_;
    draft_nodes              nodes_;

    draft_batch        batch_;
    int32_t            n_block_rows_ = 0; // of the last pass over blocks, while its logits are there
    std::vector<float> scratch_;          // logits as the target's would be
    int64_t            t_graph_us_ = 0;
};

} // namespace eagle3
