#pragma once

#include "drafter/draft_nodes.h"
#include "drafter/drafter.h"
#include "drafter/foresight.h"
#include "drafter/limits.h"
#include "drafters/llama_context/draft_context.h"
#include "drafters/llama_context/draft_vocabulary.h"

#include "llama.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace eagle3 {

// A drafter whose cache and graph are a context of llama.cpp. It drafts chains and trees. The derived class decides
// which tokens of a text wait, and what the rows of a batch are.
//
// Each sequence has an id of its own in the context, to which the cells of the accepted tokens belong, and during a
// draft the cell of id_last. The cells of drafted tokens come next, and are removed before anything else is written.
//
// Trees: each expanded node is a row of a sequence id, which shares the cells of its path with the other ids of the
// tree. The first expanded child of a node takes over the id of its parent, each further child takes one of the ids
// that the context has beyond n_seq_max; if none is left, it is not expanded. A context without such ids, or whose
// sequences do not share cells, drafts chains. A recurrent state cannot go back, so with one each sequence drafts a
// chain in a further id, as a copy of itself. If drafted tokens write no cells, all nodes are rows of the sequence
// itself.
class context_drafter : public drafter {
  public:
    const std::string & path() const override { return path_; }

    const kernels::matrices & matrices() const override { return ctx_.matrices(); }

    void use_cpu_kernels(const kernels::row_limits & limits) override { ctx_.use_cpu_kernels(limits); }

    std::map<std::string, int64_t> cpu_kernels() const override { return ctx_.cpu_kernels(); }

    int32_t n_ctx() const override { return limits().n_ctx(); }
    int32_t n_seq_max() const override { return limits().n_seq_max(); }
    int32_t n_vocab() const { return limits().n_vocab(); }

    void set_noise(std::shared_ptr<const gumbel_noise> noise, llama_seq_id seq_id) override;
    void set_rules(std::shared_ptr<grammar_lookahead> rules, llama_seq_id seq_id) override;

    void leave_out(const std::vector<llama_token> & tokens) override { left_out_ = tokens; }

    bool limit_vocab(int64_t n_first) override;

    int64_t draft_vocab() const override { return vocabulary_ ? vocabulary_->n_first() : 0; }

    void draft_always(const std::vector<llama_token> & tokens) override;

    bool    is_parallel() const override { return false; }
    int32_t n_unroll() const override { return 1; }
    int32_t n_expand() const override { return n_scratch; }

    void begin(const std::vector<llama_seq_id> & seq_ids, const std::vector<llama_token> & ids_last, int32_t top_k,
               int32_t n_steps) override;
    void expand(const std::vector<int32_t> & nodes, int32_t top_k) override;

    const std::vector<draft_node> & nodes() const override { return nodes_.all(); }

    int64_t t_graph_us() const override { return t_graph_us_; }

    // The logits of the last row that predicted a token, for tests and tools.
    const std::vector<float> & logits() const { return logits_last_; }

    // Most nodes of a sequence that a draft can expand: cells after the last valid one.
    static constexpr int32_t n_scratch = 32;

  protected:
    // What evaluated tokens leave in the context. cells: K/V. states: recurrent states too, which cannot go back. none:
    // the context reads the target's K/V and writes none; all rows of a draft are at one position.
    enum class memory_kind { cells, states, none };

    // Owns the context, and the model if it is not null, even if it throws: they are freed with this object. n_embd:
    // floats of a row besides its token. n_outputs_max: rows of a batch of the context that may have logits.
    context_drafter(llama_context * ctx, llama_model * model, const std::string & path, int32_t n_embd,
                    int32_t n_outputs_max, memory_kind memory);

    // Checks the arguments of a derived class's constructor against the context.
    static draft_limits checked_limits(const llama_context * ctx, int32_t n_vocab, int32_t n_ctx, int32_t n_seq_max);
    void                check_outputs(int32_t n_outputs_max) const;

    // of the derived class

    virtual const draft_limits & limits() const = 0;

    // Is there a row to draft from? And its position.
    virtual bool    can_begin(llama_seq_id seq_id) const = 0;
    virtual int32_t pos_begin(llama_seq_id seq_id) const = 0;

    virtual int32_t n_cells(llama_seq_id seq_id) const = 0; // valid cells end at this position

    virtual int32_t n_pos_max() const { return n_ctx(); } // only positions before this are drafted

    // Writes what waits, except the row that begin() must compute with logits anyway.
    virtual void flush(llama_seq_id seq_id) = 0;

    // Prepares a draft, which will compute the row of id_last again.
    virtual void    prepare(llama_seq_id seq_id)                                            = 0;
    // Adds the waiting rows to the batch, and that of id_last, with logits.
    virtual void    add_waiting(llama_seq_id seq_id, llama_token id_last)                   = 0;
    virtual void    on_caught_up(llama_seq_id seq_id, llama_token id_last)                  = 0;
    // Keeps what add_node() needs of a row that was computed, and returns where it is.
    virtual int32_t keep_row(const draft_context & ctx, int32_t i_batch)                    = 0;
    // Adds the row of a node. kept: what keep_row returned.
    virtual void    add_node(llama_seq_id id, llama_token token, int32_t pos, int32_t kept) = 0;
    virtual void    on_leave() = 0; // kept rows are not needed any more

    // Tells that an error came while cells of a sequence were written, so that nothing is known of them.
    virtual void on_failed(llama_seq_id seq_id) = 0;

    // The nodes whose rows one batch of a context computed, and where they are in it.
    struct computed_nodes {
        const draft_context * ctx = nullptr;
        std::vector<int32_t>  nodes;
        std::vector<int32_t>  i_batch;
    };

    // Computes some of these nodes and removes them from `nodes`; none if there was no room.
    virtual computed_nodes compute_nodes(std::vector<int32_t> & nodes);

    // A sequence id that has, or gets, the cells of the path before a node; -1 if none is left.
    virtual llama_seq_id find_id(int32_t node);

    // what it can use

    draft_context & context() { return ctx_; }

    const draft_context & context() const { return ctx_; }

    llama_context * ctx() const { return ctx_.get(); }

    int32_t n_vocab_dft() const { return n_vocab_dft_; } // of the context's model
    int32_t n_batch() const { return n_batch_; }
    bool    has_states() const { return memory_ == memory_kind::states; }

    // A batch, whose tokens are those of the context's vocabulary.
    void clear_batch() { batch_.clear(); }

    void add_row(llama_seq_id id, llama_token token, int32_t pos, const float * row, bool is_out);

    // Lets the context decode it.
    virtual void compute() { compute_in(ctx_); }

    void                compute_in(draft_context & ctx);
    void                mute_batch(); // no row has logits
    const draft_batch & batch() const { return batch_; }

    // Writes waiting rows in batches: write(n) must write the first n of them.
    void write_waiting(int32_t n_rows, const std::function<void(int32_t)> & write);

    // Removes what was drafted.
    void leave();

    // Makes the cells of a sequence end at n_cells(); false if its state cannot go back.
    virtual bool trim(llama_seq_id seq_id) { return ctx_.trim(seq_id, n_cells(seq_id)); }

    // Tell which tokens a text has, and that another text begins, to choose the tokens that are drafted.
    void read_text(llama_seq_id seq_id, const llama_token * tokens, int32_t n_tokens);
    void restart_text(llama_seq_id seq_id);

    // of all its contexts
    virtual bool find_output_matrices() { return ctx_.find_output_matrix(n_out_max_) != nullptr; }

    int32_t n_out_max() const { return n_out_max_; }

    // of a draft

    int32_t kept_of(int32_t node) const { return places_[node].kept; }
    int32_t pos_of(llama_seq_id seq_id) const; // position of the row that predicts the first level

  private:
    // A sequence in a draft.
    struct participant {
        llama_seq_id seq_id  = 0;
        llama_token  id_last = 0;
        int32_t      pos     = 0; // position of the row that predicts the first level
    };

    struct node_place {
        int32_t      kept = -1; // see keep_row
        llama_seq_id id   = -1; // once it is expanded: the sequence id in the context whose cells are its path
    };

    bool compute_round();
    void enter(const std::vector<llama_seq_id> & seq_ids, const std::vector<llama_token> & ids_last);
    void catch_up(int32_t top_k);
    void append_nodes(llama_seq_id seq_id, int32_t parent, const draft_context & ctx, int32_t i_batch, int32_t top_k);
    int32_t pos_of(const draft_node & node) const;

    int32_t n_logits() const { return std::min(n_vocab(), n_vocab_dft_); } // of tokens that both have

    draft_context ctx_;

    std::string path_;
    int32_t     n_embd_;
    int32_t     n_vocab_dft_;
    int32_t     n_batch_;
    int32_t     n_out_max_; // outputs of a batch
    memory_kind memory_;

    std::map<llama_seq_id, foresight> foresight_;
    std::vector<llama_token>          left_out_;   // see leave_out
    std::unique_ptr<draft_vocabulary> vocabulary_; // null: all tokens are drafted

    // of a draft
    std::vector<participant>  participants_;
    draft_nodes               nodes_;
    std::vector<node_place>   places_; // of the nodes
    std::vector<llama_seq_id> ids_used_;

    const kernels::channel_ranges * ranges_ = nullptr; // rows of logits that are wanted in it; null: all

    draft_batch        batch_;
    std::vector<float> logits_last_;
    int64_t            t_graph_us_ = 0;
};

} // namespace eagle3
