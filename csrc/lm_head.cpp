#include "lm_head.h"

#include "llama_ext.h"

namespace eagle3 {

const ggml_tensor * find_lm_head(const llama_model * model) {
    const ggml_tensor * output = nullptr;
    const ggml_tensor * tied   = nullptr;
    for (const auto & [name, tensor] : llama_internal_get_tensor_map(model)) {
        if (name == "output.weight") {
            output = tensor;
        }
        if (name == "token_embd.weight") {
            tied = tensor; // it can be there twice: the last one is where the output layer runs
        }
    }
    return output ? output : tied;
}

} // namespace eagle3
