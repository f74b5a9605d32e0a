#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace eagle3 {

// The facts of a target's GGUF header.
struct target_info {
    std::string path;
    std::string arch;
    std::string name;

    int32_t n_layer     = 0; // without layers for multi-token prediction; each turn of a looped layer counts
    int32_t n_embd      = 0;
    int32_t n_vocab     = 0;
    int32_t n_ctx_train = 0;
    int64_t file_size   = 0;

    bool    has_trunk     = true; // false: a file of layers for multi-token prediction alone
    int32_t n_layer_nextn = 0;    // layers for multi-token prediction that are in the file
    int32_t n_layer_gone  = 0;    // layers that the header announces and of which the file has no tensor

    // values for keys with which llama.cpp loads the file without these layers; empty if it needs none, or cannot
    std::map<std::string, int64_t> keys_without_block;
    int32_t nextn        = -1;    // layers for multi-token prediction read boundary n_layer + nextn; -1 = unknown
    int32_t n_embd_nextn = 0;     // width of such a row
    bool    runs_block   = false; // llama.cpp has a graph of these layers

    // keys of special tokens whose ids the vocabulary does not have, with these: llama.cpp takes others for them
    std::map<std::string, int64_t> unknown_ids;

    // the boundaries that can be read: 0 .. n_layer, and n_layer + 1 after the final norm
    std::vector<int32_t> boundaries;
    // why no head can be used with it; empty if one can
    std::string          why_no_target;
    std::string          why_no_text; // why no drafter can be used with it, and it cannot draft; empty if they can
};

// For a GGUF file that is no model: what it is, and which option takes it. Empty for models and drafters. Throws
// model_file_error.
std::string find_other_kind(const std::string & path);

// Throws model_file_error if the file is missing, truncated, not GGUF, or lacks one of these facts.
target_info read_target_info(const std::string & path);

} // namespace eagle3
