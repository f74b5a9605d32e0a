#pragma once

#include "gguf_file.h"

#include <cstdint>
#include <string>

namespace eagle3 {

// The facts of the header of a Gemma 4 assistant (general.architecture gemma4-assistant): layers that attend to the K/V
// of the target's last two layers, and have none of their own.
struct assistant_file {
    std::string path;
    int32_t     n_embd     = 0;
    int32_t     n_embd_tgt = 0; // width of the target's rows, and of those that it makes
    int32_t     n_layer    = 0;
    int32_t     n_vocab    = 0; // of the target
};

// Throws model_file_error with the key, what was expected and what was found.
assistant_file read_assistant(const gguf_file & file);

// Why an assistant cannot read the K/V of a target, as a sentence; empty if it can.
std::string find_kv_difference(const gguf_file & target, const gguf_file & assistant);

} // namespace eagle3
