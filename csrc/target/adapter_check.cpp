#include "target/adapter_check.h"

#include "error.h"
#include "gguf_file.h"
#include "weight_types.h"

#include <cmath>
#include <optional>
#include <string_view>

namespace eagle3 {

namespace {

bool ends_with(std::string_view text, std::string_view end) {
    return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

void check_text(const gguf_file & file, const char * key, const std::string & expected) {
    const std::string found = file.get_str(key).value_or("");
    if (found != expected) {
        throw model_file_error(format("'%s': key '%s': expected '%s' of a LoRA adapter for this model, found '%s'",
                                      file.path().c_str(), key, expected.c_str(), found.c_str()));
    }
}

// How many matrices a tensor of the model has, one for each expert; nothing where it is in another of its files.
std::optional<int64_t> n_matrices(const gguf_file & model, const std::string & name) {
    if (const ggml_tensor * tensor = model.find_tensor(name)) {
        return tensor->ne[2];
    }
    return name.find("_exps.") == std::string::npos
               ? std::nullopt
               : model.get_int(model.get_str("general.architecture").value_or("") + ".expert_count");
}

void check_matrix(const gguf_file & file, const ggml_tensor * tensor, const gguf_file & model) {
    const auto fail = [&](const std::string & what) {
        throw model_file_error(
            format("'%s': tensor '%s' %s: the file is damaged, fetch it again or convert the adapter "
                   "anew",
                   file.path().c_str(), tensor->name, what.c_str()));
    };
    if (!is_matrix_type(tensor->type)) {
        fail(format("has the type %s, of which ggml multiplies no matrices", ggml_type_name(tensor->type)));
    }
    if (ggml_nelements(tensor) == 0 || tensor->ne[3] != 1) {
        fail(format("has the shape [%lld, %lld, %lld, %lld], expected that of a matrix, or of one for each expert",
                    static_cast<long long>(tensor->ne[0]), static_cast<long long>(tensor->ne[1]),
                    static_cast<long long>(tensor->ne[2]), static_cast<long long>(tensor->ne[3])));
    }
    const std::string name       = tensor->name;
    const auto        n          = n_matrices(model, name.substr(0, name.rfind(".lora_")));
    const bool        is_for_all = tensor->ne[2] == 1 && name.find("_exps.") == std::string::npos;
    if (n && tensor->ne[2] != *n && !is_for_all) {
        throw model_file_error(format("'%s': tensor '%s': expected %lld matrices, as many as the tensor of '%s' has, "
                                      "found %lld: the adapter is of another model, or was converted wrongly",
                                      file.path().c_str(), tensor->name, static_cast<long long>(*n),
                                      model.path().c_str(), static_cast<long long>(tensor->ne[2])));
    }
    if (!ggml_validate_row_data(tensor->type, file.read(tensor).data(), ggml_nbytes(tensor))) {
        fail("holds NaN or infinite values");
    }
}

} // namespace

std::vector<std::string> check_adapter(const std::string & path, const std::string & model_path) {
    const gguf_file file(path);
    const gguf_file model(model_path);
    check_text(file, "general.type", "adapter");
    check_text(file, "adapter.type", "lora");
    check_text(file, "general.architecture", model.get_str("general.architecture").value_or(""));
    file.check_numbers();
    const char * alpha = "adapter.lora.alpha";
    if (file.type(alpha) == GGUF_TYPE_FLOAT32 && !std::isfinite(*file.get_float(alpha))) {
        throw model_file_error(
            format("'%s': key '%s': expected a number, found %g", path.c_str(), alpha, *file.get_float(alpha)));
    }
    if (file.array_length("adapter.alora.invocation_tokens") > 0) {
        throw model_file_error(format("'%s': expected an adapter for whole prompts, found one that begins at certain "
                                      "tokens (aLoRA, key 'adapter.alora.invocation_tokens'), which is not supported",
                                      path.c_str()));
    }
    std::vector<std::string> left_out;
    bool                     is_empty = true;
    for (const ggml_tensor * tensor : file.tensors()) {
        const bool is_factor = ends_with(tensor->name, ".lora_a") || ends_with(tensor->name, ".lora_b");
        if (is_factor) {
            check_matrix(file, tensor, model);
            is_empty = false;
        } else if (ends_with(tensor->name, "_norm.weight")) {
            left_out.emplace_back(tensor->name);
        } else {
            throw model_file_error(format("'%s': tensor '%s': expected names that end with .lora_a or .lora_b",
                                          path.c_str(), tensor->name));
        }
    }
    if (is_empty) {
        throw model_file_error(format("'%s': expected tensors of a LoRA adapter, found none", path.c_str()));
    }
    return left_out;
}

} // namespace eagle3
