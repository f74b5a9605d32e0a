#pragma once

#include <cstdint>
#include <string>

namespace eagle3 {

// What the header of a target's GGUF file says
struct target_info {
    std::string path;
    std::string arch;
    std::string name;

    int32_t n_layer     = 0; // without the layers for multi-token prediction
    int32_t n_embd      = 0;
    int32_t n_vocab     = 0;
    int32_t n_ctx_train = 0;
    int64_t file_size   = 0;
};

// throws model_file_error if the file is missing, truncated, not GGUF, or lacks one of these
target_info read_target_info(const std::string & path);

} // namespace eagle3
