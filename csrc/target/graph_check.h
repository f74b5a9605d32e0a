#pragma once

#include "llama.h"

#include <cstdint>
#include <functional>

struct ggml_tensor;

namespace eagle3 {

// Checks the graphs that a context would compute for what ggml asserts while it computes, on threads that no exception
// could leave: types of weights, and numbers of the file's header. Throws model_file_error with the reason, also if the
// context is longer than a table of positions. n_outputs_max: rows of a batch with logits. see(node, graph) gets each
// node of graph 0, a pass of few rows, and of graph 1, a prompt.
void check_graphs(llama_context * ctx, uint32_t n_outputs_max = UINT32_MAX,
                  const std::function<void(const ggml_tensor * node, int graph)> & see = {});

} // namespace eagle3
