#pragma once

#include "target/arch_table.h"
#include "target/graph_reader.h"

#include "llama.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace eagle3 {

// Layer-input extraction: reads the target's hidden states out of llama.cpp while it decodes.
//
// A boundary b is the residual stream after b layers: the input of layer b, 0 <= b <= n_layer. The extra value
// n_layer + 1 is the stream after the final norm. n_layer + 2, which must be the only one, is all residual streams of a
// target that has several; n_embd is then their width together.
//
// Native taps let llama.cpp copy the rows, for the architectures whose graphs publish them. Callback taps are shown
// every node of the graph by the scheduler, and copy those with the right names; this works for any architecture and
// backend, but cuts the graph into pieces.
//
// Either way the rows of one decode are in one buffer, in batch order: [n_tokens][n_boundaries][n_embd].
class feature_tap {
  public:
    // n_embd: width of a row at one boundary. kind: "auto", "native" or "callback". Must be created before the context,
    // whose parameters need cb_eval().
    feature_tap(std::vector<int32_t> boundaries, int32_t n_layer, int32_t n_embd, const std::string & arch,
                const std::string & kind = "auto");

    feature_tap(const feature_tap &)             = delete;
    feature_tap & operator=(const feature_tap &) = delete;

    bool                         native() const { return reader == nullptr; }
    const std::vector<int32_t> & boundaries() const { return bounds; }
    int32_t                      n_embd() const { return n_embd_row; }

    // Do rows exist only for tokens whose logits are requested? Most graphs drop the others in the last layer.
    bool needs_all_outputs() const;

    // For llama_context_params; null for a native tap.
    ggml_backend_sched_eval_callback cb_eval() const { return reader ? graph_reader::on_eval : nullptr; }
    void *                           cb_eval_user_data() const { return reader.get(); }

    // Must be called once, when the context exists.
    void attach(llama_context * ctx);

    // Must be called before and after each llama_decode of the attached context. end() waits for the decode, and throws
    // if rows are missing.
    void begin(const llama_batch & batch);
    void end();
    void abort(); // in place of end(): the decode failed, and there are no rows

    // Keeps only these rows of the last decode. idxs: ascending.
    void select(const std::vector<int32_t> & idxs);

    // The rows of the last decode. Throws if there are none.
    const float * rows() const;
    int32_t       n_rows() const { return n_tokens; }
    size_t        n_row_floats() const { return bounds.size() * n_embd_row; }

    // The same rows, which the next decode does not overwrite while this is held.
    std::shared_ptr<const float[]> share() const;

    // The number of decodes, which names the last one. check_decode throws if a number is not the last decode's.
    uint64_t n_decode() const { return i_decode; }
    void     check_decode(uint64_t i) const;

  private:
    enum class state { none, running, ready, failed };

    void reserve(size_t n_floats);
    void copy_native();
    void copy_input();
    void restore_order();

    const std::string          arch;
    const std::vector<int32_t> bounds;
    const int32_t              n_layer;
    const int32_t              n_embd_row;
    const arch_graph           graph;

    std::unique_ptr<graph_reader> reader; // callback only
    llama_context *               ctx = nullptr;
    ubatch_split                  split;
    ubatch_order                  order; // of the current batch, callback only

    std::shared_ptr<float[]> buf;
    size_t                   n_buf = 0; // floats
    std::vector<float>       tmp;
    int32_t                  n_tokens = 0;
    const float *            embd     = nullptr; // of the current batch, if it has rows in place of tokens
    uint64_t                 i_decode = 0;
    state                    cur      = state::none;
};

} // namespace eagle3
