#pragma once

#include "draft/drafter.h"
#include "draft/guesses.h"
#include "draft/sequences.h"

#include "llama.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace eagle3 {

struct mtp_params {
    int32_t n_ctx         = 0; // positions of each sequence
    int32_t n_seq_max     = 1; // sequences 0..n_seq_max - 1
    int32_t n_outputs_max = 1; // of the context: rows of a batch with logits
};

// Drafts with the block for multi-token prediction (NextN) that is in the target's own file: an MTP context of
// llama.cpp is its K/V cache and its graph. The block reads the target's hidden row at a position together with the
// next token, and its own rows from then on, as an EAGLE-3 head does; see draft_sequence for how they are paired.
//
// The context has a cache of its own: slot p is position p of the sequence there. Drafted tokens lie behind the last
// slot that is valid and are removed before anything else is written.
//
// Trees: each node that is expanded is a row of a sequence id, which shares the cells of its path with the others of
// the tree. The first child of a node goes on with the id of its parent, each further one takes one of the ids that the
// context has beyond n_seq_max; without one left it is not expanded. A context without such ids, or whose sequences do
// not share their cells, drafts chains.
class mtp_drafter : public drafter {
  public:
    // Takes the context over, whatever happens: it is freed with this object, before the model goes. Throws
    // incompatible_draft_error, model_file_error.
    mtp_drafter(llama_context * ctx, const std::string & path, const mtp_params & params);

    const std::string & path() const override { return path_; }
    std::string         device() const override;

    // the target's own say which kernels compute its weights
    std::map<std::string, int64_t> cpu_kernels() const override { return {}; }

    int32_t n_ctx() const override { return sequences_.n_ctx(); }
    int32_t n_seq_max() const override { return sequences_.n_seq_max(); }

    const std::vector<int32_t> & boundaries() const override { return boundaries_; }
    int32_t                      n_embd_feat() const override { return n_embd_; }
    int32_t                      n_vocab() const { return sequences_.n_vocab(); }

    int32_t n_past(llama_seq_id seq_id) const override { return sequences_[seq_id].n_past(); }
    int32_t n_waiting(llama_seq_id seq_id) const override { return sequences_[seq_id].n_rows(); }

    void process(const float * rows, const llama_token * tokens, int32_t n_tokens, int32_t n_past, llama_seq_id seq_id,
                 const int32_t * row_ids, bool may_wait) override;

    // rows of an image are rows like others here: the block counts rows
    void add_image(int32_t first, int32_t n_pos, const std::vector<int32_t> & pos, llama_seq_id seq_id) override;

    int32_t truncate(int32_t n_past, llama_seq_id seq_id, bool same_next) override;
    int32_t copy(llama_seq_id src, llama_seq_id dst, int32_t n_past, bool same_next) override;
    void    restart(int32_t n_past, llama_seq_id seq_id) override;

    std::vector<uint8_t> state_get(llama_seq_id seq_id) override;
    void                 state_set(const std::vector<uint8_t> & state, llama_seq_id seq_id) override;

    void set_noise(std::shared_ptr<const gumbel_noise> noise, llama_seq_id seq_id) override;

    bool    is_parallel() const override { return false; }
    int32_t n_unroll() const override { return 1; }
    int32_t n_expand() const override { return n_scratch; }

    void begin(const std::vector<llama_seq_id> & seq_ids, const std::vector<llama_token> & ids_last, int32_t top_k,
               int32_t n_steps) override;
    void expand(const std::vector<int32_t> & nodes, int32_t top_k) override;

    const std::vector<draft_node> & nodes() const override { return nodes_; }

    std::vector<std::vector<llama_token>> propose_batch(const std::vector<llama_seq_id> & seq_ids,
                                                        const std::vector<llama_token> &  ids_last,
                                                        const std::vector<int32_t> & n_max, float p_min) override;

    void                     guess_next_text() override { guesses_.want(); }
    std::vector<draft_guess> take_guesses() override { return guesses_.take(); }

    size_t  n_bytes_read() const override { return n_bytes_read_; }
    int64_t t_graph_us() const override { return t_graph_us_; }

    // of the last row that was computed for a token behind it, for tests and tools
    const std::vector<float> & logits() const { return logits_last_; }
    const std::vector<float> & hidden_state() const { return rows_out_; }

    // nodes of a sequence that can be expanded in a round: slots behind the last valid one
    static constexpr int32_t n_scratch = 32;

  private:
    static constexpr int32_t n_top_llama = 10; // llama.cpp's drafter samples from the ten best logits
    static constexpr int32_t n_top_noise = 16; // candidates of which noise may make one the best

    struct context_deleter {
        void operator()(llama_context * ctx) const { llama_free(ctx); }
    };

    // a sequence in a round
    struct participant {
        llama_seq_id seq_id  = 0;
        llama_token  id_last = 0;
        int32_t      pos     = 0; // of its last target row
    };

    struct node_place {
        int32_t      row = -1; // of rows_out_, that the node came out of
        llama_seq_id id  = -1; // once it is expanded: the sequence id in the context whose cells are its path
    };

    // rows of a batch, with their tokens
    struct pass {
        std::vector<llama_token>    tokens;
        std::vector<llama_pos>      pos;
        std::vector<int32_t>        n_seq_id;
        std::vector<llama_seq_id>   seq_id;
        std::vector<llama_seq_id *> seq_ids;
        std::vector<float>          embd;
        std::vector<int8_t>         is_out;

        void clear();
    };

    void                 find_rows_kind();
    void                 add_row(llama_seq_id id, llama_token token, int32_t pos, const float * row, bool is_out);
    void                 compute();
    void                 trim(llama_seq_id seq_id);
    void                 flush(llama_seq_id seq_id);
    void                 write(llama_seq_id seq_id, int32_t n_rows, bool guess);
    void                 enter(const std::vector<llama_seq_id> & seq_ids, const std::vector<llama_token> & ids_last);
    void                 leave();
    void                 catch_up(int32_t top_k);
    void                 expand_nodes(const std::vector<int32_t> & nodes, int32_t top_k);
    int32_t              take_row(int32_t i_batch);
    void                 append_nodes(llama_seq_id seq_id, int32_t parent, int32_t i_batch, int32_t top_k);
    int32_t              pos_of(llama_seq_id seq_id) const;
    void                 copy_cells(llama_seq_id src, llama_seq_id dst, int32_t end);
    std::vector<uint8_t> save_cells(llama_seq_id seq_id) const;
    void                 load_cells(const uint8_t * cells, size_t n_bytes, llama_seq_id seq_id);

    std::unique_ptr<llama_context, context_deleter> ctx_;

    std::string          path_;
    const ggml_tensor *  eh_proj_ = nullptr;
    std::vector<int32_t> boundaries_;
    int32_t              n_embd_;
    int32_t              n_batch_;
    int32_t              n_out_max_;    // outputs of a batch
    bool                 shares_cells_; // between sequences
    size_t               n_bytes_read_ = 0;
    uint64_t             fingerprint_  = 0;

    draft_sequences                                  sequences_;
    std::vector<std::shared_ptr<const gumbel_noise>> noise_;

    // of a round
    std::vector<participant>  round_;
    std::vector<draft_node>   nodes_;
    std::vector<node_place>   places_;   // of the nodes
    std::vector<float>        rows_out_; // the block's own rows, [n][n_embd]
    std::vector<llama_seq_id> ids_free_;

    pass               pass_;
    std::vector<float> logits_last_;
    draft_guesses      guesses_;
    int64_t            t_graph_us_ = 0;
};

} // namespace eagle3
