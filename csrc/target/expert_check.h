#pragma once

#include "gguf_file.h"

#include <cstdint>

namespace eagle3 {

// Checks the weights that choose experts. ggml sorts their products, and uses ids from a table as they are, so that
// NaN, or an id of no expert, would end the process. Throws model_file_error, which names the tensor.
void check_experts(const gguf_file & file, int64_t n_expert);

} // namespace eagle3
