#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace eagle3 {

// The facts of a target's GGUF header
struct target_info {
    std::string path;
    std::string arch;
    std::string name;

    int32_t n_layer     = 0; // without the layers for multi-token prediction, with each turn of a loop
    int32_t n_embd      = 0;
    int32_t n_vocab     = 0;
    int32_t n_ctx_train = 0;
    int64_t file_size   = 0;

    bool    has_trunk     = true; // false: a file of layers for multi-token prediction alone
    int32_t n_layer_nextn = 0;    // layers for multi-token prediction that are in the file
    int32_t n_layer_gone  = 0;    // those that the header announces, and of which the file has no tensor

    // keys with the values that they would have without the announced layers, for llama.cpp; none: it needs none, or
    // cannot be told
    std::map<std::string, int64_t> keys_without_block;
    int32_t nextn        = -1;    // the rows that they read are those at boundary n_layer + nextn; -1 = unknown
    int32_t n_embd_nextn = 0;     // values of such a row
    bool    runs_block   = false; // whether llama.cpp has a graph of them

    // where its hidden states can be read: 0 .. n_layer, and n_layer + 1 after the final norm
    std::vector<int32_t> boundaries;
    // why no head can be used with it, empty if one can
    std::string          why_no_target;
    std::string          why_no_text; // why nothing can draft for it, nor it for others
};

// What a GGUF file is that holds no model, and what takes it; empty for models and drafters. Throws model_file_error.
std::string find_other_kind(const std::string & path);

// throws model_file_error if the file is missing, truncated, not GGUF, or lacks one of these
target_info read_target_info(const std::string & path);

} // namespace eagle3
