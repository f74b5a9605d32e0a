#pragma once

#include "target/arch_table.h"
#include "target/ubatch_order.h"

#include "ggml-backend.h"
#include "llama.h"

#include <cstdint>
#include <string>
#include <vector>

namespace eagle3 {

// Copies named tensors out of the target's graph while the scheduler runs it (llama_context_params.cb_eval).
//
// The scheduler asks for every node whether its data is wanted, and calls again when the data is there, synchronized. A
// batch is several ubatches, each one run of the graph: their rows are in the order of evaluation.
class graph_reader {
  public:
    graph_reader(std::vector<int32_t> boundaries, int32_t n_layer, int32_t n_embd, const std::string & arch);

    static bool on_eval(ggml_tensor * t, bool ask, void * user_data);

    // Writes rows of the next decode to dst, [n_tokens][n_boundaries][n_embd], in the order of evaluation.
    void begin(const llama_batch & batch, const ubatch_order & order, float * dst);
    // Throws if something is missing or was not as expected.
    void end();
    void abort() { dst = nullptr; }

    // Did rows come as embeddings that are the first layer's input as they are?
    bool input_is_embd() const { return lacks_input; }

  private:
    bool    ask(const ggml_tensor * t);
    int32_t boundary_of(const char * name) const;
    void    read(const ggml_tensor * t);
    void    copy_rows(const ggml_tensor * t, size_t i_slot);
    void    check_tokens(const ggml_tensor * t);
    void    begin_ubatch();
    void    end_ubatch();

    std::string slot_name(size_t i_slot) const;

    const std::vector<int32_t> bounds;
    const int32_t              n_layer;
    const int32_t              n_embd;
    const std::string          arch;
    const arch_graph           graph;

    std::vector<int32_t> slot_of; // boundary -> index in bounds, or -1

    // this decode
    float *              dst         = nullptr; // null: not ours to read
    const llama_token *  token       = nullptr; // set when the order of evaluation is not that of the batch
    const ubatch_order * order       = nullptr;
    bool                 has_embd    = false; // rows came as embeddings
    bool                 lacks_input = false;
    int32_t              n_tokens    = 0;
    int32_t              n_done      = 0; // rows of finished ubatches
    size_t               i_ubatch    = 0;
    std::string          problem;

    // this ubatch
    std::vector<int32_t> n_rows;      // per slot
    std::vector<float>   device_rows; // scratch
    bool                 started = false;
    int32_t              b_last  = -1; // the last boundary that was read
    int32_t              i_slot  = -1; // slot of the node that was asked for
    bool                 is_embd = false;
};

} // namespace eagle3
