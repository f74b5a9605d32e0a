#pragma once

#include "llama.h"

#include <vector>

struct ggml_tensor;

namespace eagle3 {

// The matrix that makes a model's logits: the token embedding if the model ties them; null if it has neither.
const ggml_tensor * find_lm_head(const llama_model * model);

// The matrices that a model multiplies by, without tables, whose rows are looked up.
std::vector<const ggml_tensor *> model_matrices(const llama_model * model);

} // namespace eagle3
