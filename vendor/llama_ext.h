#pragma once

// libllama exports a few C++ functions that llama.h does not declare. These are our own declarations of those that
// we call; they belong to the version of llama-cpp-python in vendor/llama_cpp_python_version and are checked whenever
// that moves.

#include "llama.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

// the input of layer il, for all tokens of a batch, in batch order. Only some architectures publish it: asking another
// one aborts the process at the next decode (see csrc/target/feature_tap.cpp)
LLAMA_API void    llama_set_embeddings_layer_inp(llama_context * ctx, uint32_t il, bool value);
LLAMA_API float * llama_get_embeddings_layer_inp(llama_context * ctx, uint32_t il);

// the residual stream before the final norm. masked: only for the tokens with logits
LLAMA_API void    llama_set_embeddings_nextn(llama_context * ctx, bool value, bool masked);
LLAMA_API float * llama_get_embeddings_nextn(llama_context * ctx);
LLAMA_API float * llama_get_embeddings_nextn_ith(llama_context * ctx, int32_t i);

// which block for multi-token prediction an MTP context computes, 0 = the first one after the layers
LLAMA_API void llama_set_nextn_layer_offset(llama_context * ctx, int32_t offset);

// the graph of a batch of that shape, as decode would build it; valid until the next call
LLAMA_API ggml_cgraph * llama_graph_reserve(llama_context * ctx, uint32_t n_tokens, uint32_t n_seqs,
                                            uint32_t n_outputs);

// all tensors of a model by name
LLAMA_API const std::vector<std::pair<std::string, ggml_tensor *>> &
                llama_internal_get_tensor_map(const llama_model * model);

// the context that a context was made beside, if it uses it: the target's
LLAMA_API llama_context * llama_get_ctx_other(llama_context * ctx);
