#pragma once

#include "gguf_file.h"

#include <cstdint>

namespace eagle3 {

// Checks the weights that choose experts: ggml sorts what they give, and takes ids from a table as they are, so that
// values that are no numbers, or ids of no expert, would end the process. A model_file_error names the tensor
void check_experts(const gguf_file & file, int64_t n_expert);

} // namespace eagle3
