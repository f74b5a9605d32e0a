#pragma once

#include "drafter/draft_nodes.h"
#include "drafter/drafter.h"
#include "drafter/foresight.h"
#include "drafters/eagle3/draft_memory.h"
#include "drafters/eagle3/row_writer.h"
#include "drafters/eagle3/runner.h"

#include <memory>
#include <vector>

namespace eagle3 {

// Builds drafts, each for some sequences at once, level by level. Its methods are those of drafter.
//
// A draft begins with one graph for all waiting rows, of which only the last one of each sequence goes through the
// whole head. The recurrent rounds follow: each is a graph that drafts the next level from the head's own rows of the
// previous level. Drafted tokens use slots from n_past on.
class draft_builder {
  public:
    // n_unroll: most steps of a chain in one graph; a parallel head computes all steps in one.
    draft_builder(const head_hparams & hparams, const head_weights & weights, draft_memory & memory,
                  row_writer & writer, draft_runner & runner, int32_t n_unroll, drafter_stats & stats) :
        hparams_(hparams), weights_(weights), memory_(memory), writer_(writer), runner_(runner), n_unroll_(n_unroll),
        stats_(stats), foresight_(static_cast<size_t>(memory.n_seq_max())) {}

    void set_noise(std::shared_ptr<const gumbel_noise> noise, llama_seq_id seq_id) {
        foresight_[static_cast<size_t>(seq_id)].noise = std::move(noise);
    }

    void set_rules(std::shared_ptr<grammar_lookahead> rules, llama_seq_id seq_id) {
        foresight_[static_cast<size_t>(seq_id)].rules = std::move(rules);
    }

    int32_t n_unroll() const { return n_unroll_; }

    void begin(const std::vector<llama_seq_id> & seq_ids, const std::vector<llama_token> & ids_last, int32_t top_k,
               int32_t n_steps);
    void expand(const std::vector<int32_t> & nodes, int32_t top_k);

    const std::vector<draft_node> & nodes() const { return nodes_.all(); }

    void end();

  private:
    // A sequence in a draft.
    struct participant {
        llama_seq_id seq_id  = 0;
        llama_token  id_last = 0;
        int32_t      pos     = 0; // position of its last target row
        int32_t      n_used  = 0; // slots in use after that
    };

    // Where a node is in the head's tensors.
    struct node_rows {
        int32_t state = 0;  // row of the state that predicted the node
        int32_t slot  = -1; // slot of the node, once it is expanded
    };

    bool              is_parallel() const { return hparams_.is_parallel(); }
    void              enter(const std::vector<llama_seq_id> & seq_ids, const std::vector<llama_token> & ids_last);
    participant &     participant_of(llama_seq_id seq_id);
    draft_pass::row & add_row(llama_seq_id seq_id, llama_token token, int32_t pos);
    void              compute();
    void              catch_up(int32_t n_top, int32_t n_steps);
    bool              knows_something() const;
    int32_t           n_top(int32_t n) const;
    std::vector<draft_candidate> candidates(const participant & part, int32_t i_out, int32_t i_step,
                                            const std::vector<llama_token> & path, int32_t n_top);
    int32_t append_nodes(const participant & part, int32_t parent, const std::vector<draft_candidate> & found,
                         int32_t state);
    void    expand_ahead(int32_t top_k);
    const std::vector<draft_candidate> & ahead(int32_t i_part, const std::vector<llama_token> & path, int32_t top_k);

    const head_hparams & hparams_;
    const head_weights & weights_;
    draft_memory &       memory_;
    row_writer &         writer_;
    draft_runner &       runner_;
    int32_t              n_unroll_;
    drafter_stats &      stats_;

    std::vector<foresight> foresight_; // by sequence

    std::vector<participant> participants_; // in the order of the cache
    draft_nodes              nodes_;
    std::vector<node_rows>   node_rows_;
    int32_t                  n_state_ = 0; // rows of the state in use

    // for a parallel head: candidates by participant and depth, computed when they are asked for
    int32_t                                   n_ahead_ = 0; // depths
    std::vector<std::vector<draft_candidate>> ahead_;

    draft_pass           pass_;
    std::vector<int32_t> order_; // scratch of enter and expand
};

} // namespace eagle3
