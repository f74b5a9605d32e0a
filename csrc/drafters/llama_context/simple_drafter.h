#pragma once

#include "drafters/llama_context/context_drafter.h"

#include "llama.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

namespace eagle3 {

struct simple_params {
    int32_t n_vocab_tgt   = 0; // tokens of the target
    int32_t n_ctx         = 0; // positions of each sequence
    int32_t n_pos_max     = 0; // positions that the model was trained for; it drafts before these end
    int32_t n_seq_max     = 1; // sequences 0..n_seq_max - 1
    int32_t n_outputs_max = 1; // rows of a batch of the context that may have logits
};

// Drafts with a small model of the target's vocabulary, which reads only tokens and nothing of the target. It keeps the
// tokens of each sequence, and evaluates them again if its context cannot go back: rows are never needed twice.
class simple_drafter : public context_drafter {
  public:
    // Owns the context and its model, even if it throws: they are freed with this object. Throws model_file_error.
    simple_drafter(llama_context * ctx, llama_model * model, const std::string & path, const simple_params & params);

    std::string device() const override { return draft_context::device_of(lm_head_); }

    size_t n_bytes_read() const override { return n_bytes_read_; }

    const std::vector<int32_t> & boundaries() const override { return boundaries_; }
    int32_t                      n_embd_feat() const override { return 0; }

    int32_t n_past(llama_seq_id seq_id) const override { return text_of(seq_id).n_past(); }

    // The tokens that wait, or those of them that are read, and id_last.
    int32_t n_waiting(llama_seq_id seq_id) const override {
        return std::min(text_of(seq_id).n_unwritten(), n_sinks + n_window) + 1;
    }

    void process(const float * rows, const llama_token * tokens, int32_t n_tokens, int32_t n_past, llama_seq_id seq_id,
                 const int32_t * row_ids, bool may_wait) override;

    int32_t truncate(int32_t n_past, llama_seq_id seq_id, bool same_next) override;
    int32_t copy(llama_seq_id src, llama_seq_id dst, int32_t n_past, bool same_next) override;
    void    restart(int32_t n_past, llama_seq_id seq_id) override;

    std::vector<uint8_t> state_get(llama_seq_id seq_id) override;
    void                 state_set(const std::vector<uint8_t> & state, llama_seq_id seq_id) override;

  protected:
    const draft_limits & limits() const override { return limits_; }
    bool                 can_begin(llama_seq_id seq_id) const override { return n_past(seq_id) < n_pos_max_; }
    int32_t              pos_begin(llama_seq_id seq_id) const override { return n_past(seq_id); }
    int32_t              n_cells(llama_seq_id seq_id) const override { return text_of(seq_id).end(); }
    int32_t              n_pos_max() const override { return n_pos_max_; }
    void                 flush(llama_seq_id seq_id) override;
    void                 prepare(llama_seq_id seq_id) override;
    void                 add_waiting(llama_seq_id seq_id, llama_token id_last) override;
    void                 on_caught_up(llama_seq_id seq_id, llama_token id_last) override;
    int32_t              keep_row(const draft_context &, int32_t) override { return -1; }
    void                 add_node(llama_seq_id id, llama_token token, int32_t pos, int32_t kept) override;
    void                 on_leave() override {}
    void                 on_failed(llama_seq_id seq_id) override;

  private:
    // More tokens than this do not wait for a draft, unless they may.
    static constexpr int32_t n_wait_max = 128;

    // If more tokens wait for a draft than n_sinks + n_window, only the last n_window are read, and before them the
    // first n_sinks of the text, on which attention puts what it has no other use for (StreamingLLM, arXiv 2309.17453).
    static constexpr int32_t n_sinks  = 4;
    static constexpr int32_t n_window = 1024;

    // The tokens of a sequence, from pos_start on. n_skipped of them, which follow the sinks, are not read. Of the
    // others the first n_written are in the cache, at the positions before the next token: the sinks are moved there.
    // If all are, `seeded`, the token that something was drafted after, may be there too.
    struct text {
        int32_t                    pos_start = 0;
        std::vector<llama_token>   tokens;
        int32_t                    n_skipped = 0;
        int32_t                    n_written = 0;
        std::optional<llama_token> seeded;
        // A saved window holds only the cells that the last one sees, so the text cannot be cut to fewer tokens than
        // this
        int32_t                    n_loaded = 0;

        int32_t n_tokens() const { return static_cast<int32_t>(tokens.size()); }
        int32_t n_past() const { return pos_start + n_tokens(); }
        int32_t n_unwritten() const { return n_tokens() - n_skipped - n_written; }
        int32_t begin() const { return pos_start + n_skipped; } // of its cells
        int32_t end() const { return begin() + n_written + (seeded ? 1 : 0); }
        bool    is_whole_window(int32_t n) const { return n_skipped == 0 || n >= n_skipped + n_sinks + n_window; }

        // The i-th token that is read.
        llama_token read(int32_t i) const { return tokens[i < n_sinks ? i : i + n_skipped]; }

        // Notes that nothing is in the cache.
        void forget() { n_skipped = n_written = n_loaded = 0; }
    };

    const text & text_of(llama_seq_id seq_id) const;
    text &       text_of(llama_seq_id seq_id);
    llama_token  own(llama_token token) const { return token < n_vocab_dft() ? token : 0; } // padding of the target's
    void         write(llama_seq_id seq_id, int32_t n_tokens);
    void         unseed(llama_seq_id seq_id);
    void         skip(llama_seq_id seq_id);
    void         fit_cells(llama_seq_id seq_id);

    draft_limits         limits_;
    int32_t              n_pos_max_;
    std::vector<text>    texts_;
    std::vector<int32_t> boundaries_;
    const ggml_tensor *  lm_head_      = nullptr;
    size_t               n_bytes_read_ = 0;
    uint64_t             fingerprint_  = 0;
    bool                 has_windows_;
};

} // namespace eagle3
