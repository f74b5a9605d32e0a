#pragma once

#include "kernels/cpu_kernels.h"
#include "kernels/limited_product.h"

#include "llama.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

struct ggml_tensor;

namespace eagle3 {

// A context of llama.cpp that a drafter owns: its passes, the cells of its sequences, and its model.
class draft_context {
  public:
    // Owns both. own_model: null if the context is of the target's model.
    draft_context(llama_context * ctx, llama_model * own_model);

    llama_context * get() const { return ctx_.get(); }

    llama_memory_t memory() const { return llama_get_memory(ctx_.get()); }

    // Do sequences share cells? If not, each has a stream of its own.
    bool shares_cells() const { return shares_cells_; }

    // The weights that its own model multiplies by.
    const kernels::matrices & matrices() const { return matrices_; }

    void use_cpu_kernels(const kernels::row_limits & limits);

    std::map<std::string, int64_t> cpu_kernels() const {
        return cpu_kernels_ ? cpu_kernels_->n_weights() : std::map<std::string, int64_t>();
    }

    // Finds the matrix that makes logits, in the graph of a pass with n_outputs of them. Null if there is none, or if
    // our kernels do not compute its products.
    const ggml_tensor * find_output_matrix(int32_t n_outputs);

    // Calls llama_decode, waits for it, and adds the time to time_us. ranges: the rows of the output matrix whose
    // logits are wanted (others are -INFINITY); null: all. Throws context_full_error, error.
    void decode(const llama_batch & batch, int64_t & time_us, const kernels::channel_ranges * ranges = nullptr);

    // The logits of a row of the last pass.
    const float * logits(int32_t i_row) const;

    // Removes the cells of a sequence from position `end` on. False if it has a state, which cannot go back.
    bool trim(llama_seq_id seq_id, int32_t end);
    void clear(llama_seq_id seq_id);

    // Copies the cells before position `end` to an empty sequence. If there is a state, it must end there.
    void copy(llama_seq_id src, llama_seq_id dst, int32_t end);

    // All cells of a sequence as bytes. load() expects an empty sequence, and leaves one if it throws. What was saved
    // must end at position `end` and begin at pos_start, or later, since llama.cpp saves only the visible part of a
    // window.
    std::vector<uint8_t> save(llama_seq_id seq_id) const;
    void load(const uint8_t * cells, size_t n_bytes, llama_seq_id seq_id, int32_t pos_start, int32_t end);

    static std::string device_of(const ggml_tensor * tensor);

    // A hash of the weights' names and first bytes, which identifies them.
    static uint64_t fingerprint_of(const std::vector<const ggml_tensor *> & tensors);

  private:
    struct deleter {
        void operator()(llama_context * ctx) const { llama_free(ctx); }

        void operator()(llama_model * model) const { llama_model_free(model); }
    };

    // freed in the opposite order
    std::unique_ptr<llama_model, deleter>   model_;
    std::unique_ptr<llama_context, deleter> ctx_;
    std::unique_ptr<kernels::cpu_kernels>   cpu_kernels_;

    kernels::matrices   matrices_;
    const ggml_tensor * output_matrix_ = nullptr; // see find_output_matrix
    bool                shares_cells_;
};

// The rows of a batch, each of one sequence.
struct draft_batch {
    std::vector<llama_token>  tokens;
    std::vector<float>        embd; // in place of tokens, or in addition to them
    std::vector<llama_pos>    pos;
    std::vector<llama_seq_id> seq_ids;
    std::vector<int8_t>       is_out;

    int32_t n_rows() const { return static_cast<int32_t>(seq_ids.size()); }

    void clear();
    void add(llama_seq_id seq_id, llama_pos pos_row, bool is_out_row);

    // Valid until the rows change.
    llama_batch get();

  private:
    std::vector<int32_t>        n_seq_id_;
    std::vector<llama_seq_id *> seq_id_;
};

} // namespace eagle3
