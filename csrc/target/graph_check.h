#pragma once

#include "llama.h"

#include <cstdint>
#include <functional>

struct ggml_tensor;

namespace eagle3 {

// Looks through the graphs that a context would compute for what ggml asserts while it computes, on threads where no
// exception could get out: types of weights, numbers from the file's header. A model_file_error has the reason.
// A context that reaches beyond a table of positions is an error too. n_outputs_max: rows of a batch with logits. see:
// gets each node, and which of the graphs it is of: 0, of a pass of few rows, or 1, of a prompt
void check_graphs(llama_context * ctx, uint32_t n_outputs_max = UINT32_MAX,
                  const std::function<void(const ggml_tensor * node, int graph)> & see = {});

} // namespace eagle3
