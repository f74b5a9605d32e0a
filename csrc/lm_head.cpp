#include "lm_head.h"

#include "llama_ext.h"

#include <algorithm>
#include <iterator>
#include <string>

namespace eagle3 {

const ggml_tensor * find_lm_head(const llama_model * model) {
    const ggml_tensor * output = nullptr;
    const ggml_tensor * tied   = nullptr;
    for (const auto & [name, tensor] : llama_internal_get_tensor_map(model)) {
        if (name == "output.weight") {
            output = tensor;
        }
        if (name == "token_embd.weight") {
            tied = tensor; // there may be two copies: the last one is on the device of the output layer
        }
    }
    return output ? output : tied;
}

std::vector<const ggml_tensor *> model_matrices(const llama_model * model) {
    // the last ones are of block drafters
    static const char * const tables[] = { "token_embd", "markov_w1.", "selector_predecessor.", "selector_successor.",
                                           "_conv_base" };

    const ggml_tensor *              lm_head = find_lm_head(model);
    std::vector<const ggml_tensor *> found;
    for (const auto & named : llama_internal_get_tensor_map(model)) {
        const bool is_table = std::any_of(std::begin(tables), std::end(tables), [&](const char * part) {
            return named.first.find(part) != std::string::npos;
        });
        if (ggml_n_dims(named.second) > 1 && (named.second == lm_head || !is_table)) {
            found.push_back(named.second);
        }
    }
    return found;
}

} // namespace eagle3
