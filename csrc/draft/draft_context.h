#pragma once

#include "llama.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace eagle3 {

// A context of llama.cpp that a drafter owns, with the cells of its sequences
class draft_context {
  public:
    explicit draft_context(llama_context * ctx) : ctx_(ctx) {} // takes it over

    llama_context * get() const { return ctx_.get(); }

    const llama_model * model() const { return llama_get_model(ctx_.get()); }

    // whether sequences can share cells; else each has a stream of its own
    bool shares_cells() const { return llama_n_ctx_seq(ctx_.get()) == llama_n_ctx(ctx_.get()); }

    // llama_decode, and wait for it; throws context_full_error, error. time_us grows by what it took
    void decode(const llama_batch & batch, int64_t & time_us);

    // forget the cells of a sequence from position `end` on
    void trim(llama_seq_id seq_id, int32_t end);
    void clear(llama_seq_id seq_id);

    // cells before position `end`, into an empty sequence
    void copy(llama_seq_id src, llama_seq_id dst, int32_t end);

    // All cells of a sequence as bytes. load() expects an empty sequence and leaves one if it throws: what was saved
    // ended at position `end` and began at pos_start or later, since of a window llama.cpp saves what is still seen
    std::vector<uint8_t> save(llama_seq_id seq_id) const;
    void load(const uint8_t * cells, size_t n_bytes, llama_seq_id seq_id, int32_t pos_start, int32_t end);

  private:
    struct deleter {
        void operator()(llama_context * ctx) const { llama_free(ctx); }
    };

    llama_memory_t memory() const { return llama_get_memory(ctx_.get()); }

    std::unique_ptr<llama_context, deleter> ctx_;
};

// The rows of a batch, one sequence each
struct draft_batch {
    std::vector<llama_token>  tokens; // or `embd`
    std::vector<float>        embd;
    std::vector<llama_pos>    pos;
    std::vector<llama_seq_id> seq_ids;
    std::vector<int8_t>       is_out;

    int32_t n_rows() const { return static_cast<int32_t>(seq_ids.size()); }
    void    clear();

    // valid until the rows change
    llama_batch get();

  private:
    std::vector<int32_t>        n_seq_id_;
    std::vector<llama_seq_id *> seq_id_;
};

} // namespace eagle3
