#pragma once

#include "drafter/draft_tree.h"
#include "drafters/eagle3/graph.h"
#include "drafters/eagle3/rope_positions.h"
#include "ggml-alloc.h"

#include <list>
#include <utility>
#include <vector>

namespace eagle3 {

// The rows that one graph evaluates, those of a sequence together. Cleared and filled again for each graph.
struct draft_pass {
    struct row {
        llama_seq_id seq_id = 0;
        llama_token  token  = 0; // the one after the row
        int32_t      pos    = 0;
        int32_t      slot   = 0;
        // the row sees slots first <= slot < end and its ancestors, itself included, as far as its window reaches
        int32_t      first  = 0;
        int32_t      end    = 0;
        bool         is_out = true; // goes all the way; the last rows of their sequence do
        int32_t state_in    = 0; // expand: index of its hidden row; with several steps of a parallel head, of features
        int64_t state_out   = 0; // expand: index where its output is written
    };

    graph_kind kind    = graph_kind::expand;
    int32_t    n_top   = 0; // see graph_shape
    int32_t    n_steps = 1;

    std::vector<row>     rows;
    std::vector<int32_t> ancestors;   // slots, one row's after another's
    std::vector<int32_t> n_ancestors; // per row, or empty if no row has any

    // The features of rows, one after another.
    struct segment {
        const float * data   = nullptr;
        int32_t       n_rows = 0;
    };
    std::vector<segment> features;

    int32_t state_last = 0; // index of the recurrent row after the last output, for tests and tools

    // Appends a row that sees the slots of its sequence from `first` to itself.
    row & add_row(llama_seq_id seq_id, llama_token token, int32_t pos, int32_t first);

    void clear(graph_kind kind, int32_t n_top = 0, int32_t n_steps = 1);
};

struct galloc_deleter {
    void operator()(ggml_gallocr_t galloc) const { ggml_gallocr_free(galloc); }
};
using galloc_ptr = std::unique_ptr<ggml_gallocr, galloc_deleter>;

// Builds graphs, keeps them, computes them. All share one compute buffer, since only one runs at a time.
class draft_runner {
  public:
    // positions: of each sequence's slots, for heads with M-RoPE. n_state: the number of recurrent rows to keep.
    draft_runner(const head_hparams & hparams, const head_weights & weights, const draft_cache & cache,
                 const device & dev, const std::vector<rope_positions> & positions, int32_t n_state);

    // Throws if the device cannot run it.
    void compute(const draft_pass & pass);

    // The best token, in the draft vocabulary, of a chain and step of the last pass; -1 if there is none.
    int32_t best(int32_t i_out, int32_t i_step) const;

    // The n_top best tokens of a chain and step of the last pass, with probabilities; fewer if the head computed NaN.
    const std::vector<draft_candidate> & candidates(int32_t i_out, int32_t i_step);

    // Builds a graph; throws if the device cannot run it.
    void check(const graph_shape & shape) { get_graph(shape); }

    // For tests and tools: the logits of the last step of the first chain of the last pass, empty if there was none;
    // and the recurrent row after the last pass with outputs.
    std::vector<float> last_logits() const;
    std::vector<float> last_state() const;

    int32_t n_graph_nodes() const; // nodes of the last pass that compute something

    int64_t t_graph_us = 0; // inside ggml

  private:
    static constexpr size_t n_graphs_max = 64;

    // The index of a chain's step in what was read back.
    size_t index(int32_t i_out, int32_t i_step) const {
        const graph_shape & shape = last_->shape;
        return model_.hparams.is_parallel() ? static_cast<size_t>(i_out) * shape.n_steps + i_step
                                            : static_cast<size_t>(i_step) * shape.n_out + i_out;
    }

    draft_graph & get_graph(const graph_shape & shape);
    void          alloc(draft_graph & graph);
    void          find_streams(const draft_pass & pass);
    void          set(ggml_tensor * tensor, const void * data, size_t n_bytes, size_t offset = 0);
    void          set_inputs(const draft_graph & graph, const draft_pass & pass);
    void          read_outputs(const draft_graph & graph);

    const device &                      dev_;
    const std::vector<rope_positions> & positions_;

    // Appends the positions of rows, `step` further, in the order of the graph's tensor.
    void add_positions(std::vector<int32_t> & pos, const draft_pass & pass, const std::vector<int32_t> & rows,
                       int32_t step) const;

    context_ptr state_ctx_;
    buffer_ptr  state_buffer_;
    draft_model model_;
    galloc_ptr  galloc_;

    std::list<draft_graph> graphs_; // most recently used first
    draft_graph *          last_          = nullptr;
    int32_t                state_last_    = 0;
    int64_t                cache_version_ = 0; // the cache's version for which graphs_ were built

    graph_shape shape_; // scratch of compute

    // scratch of set_inputs; the device may read it until the graph is done
    std::vector<int32_t>                     out_rows_, n_kv_;
    std::vector<std::pair<int32_t, int32_t>> n_kv_of_; // scratch: slots of an extent -> those that are seen
    std::vector<float>                       embd_;
    std::vector<int32_t>                     pos_, pos_out_, state_in_, step_pos_;
    std::vector<int64_t>                     row_, state_out_, step_row_;
    std::vector<ggml_fp16_t>                 mask_, mask_out_, step_mask_;

    // results of the last pass, by step and row
    std::vector<int32_t>         ids_;
    std::vector<int32_t>         top_;
    std::vector<float>           top_p_, probs_;
    std::vector<draft_candidate> found_;
};

} // namespace eagle3
