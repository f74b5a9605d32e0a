#include "target/expert_check.h"

#include "error.h"
#include "weight_types.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

namespace eagle3 {

// Up to so many values the standard library sorts by insertion, which stays in its range whatever the values are.
static constexpr int64_t n_sorted_by_insertion = 16;

// A sum of larger values could overflow and become NaN.
static constexpr float value_max = 1e30f;

static bool has(std::string_view name, std::string_view part) {
    return name.find(part) != std::string_view::npos;
}

static void check_router(const gguf_file & file, const ggml_tensor * tensor) {
    const std::vector<uint8_t> data = file.read(tensor);
    std::vector<float>         values(ggml_nelements(tensor));
    if (tensor->type == GGML_TYPE_F32) {
        std::copy_n(reinterpret_cast<const float *>(data.data()), values.size(), values.data());
    } else if (is_matrix_type(tensor->type)) {
        ggml_get_type_traits(tensor->type)->to_float(data.data(), values.data(), static_cast<int64_t>(values.size()));
    } else {
        return; // ggml cannot compute with it (graph_check.h)
    }
    if (!std::all_of(values.begin(), values.end(), [](float x) { return std::fabs(x) <= value_max; })) {
        throw model_file_error(
            format("'%s': tensor '%s', which chooses experts, holds NaN, infinite or huge values: the file is damaged",
                   file.path().c_str(), tensor->name));
    }
}

static void check_ids(const gguf_file & file, const ggml_tensor * tensor, int64_t n_expert) {
    const std::vector<uint8_t> data = file.read(tensor);
    const auto *               ids  = reinterpret_cast<const int32_t *>(data.data());
    const int64_t              n    = ggml_nelements(tensor);
    const auto *               bad  = std::find_if(ids, ids + n, [&](int32_t id) { return id < 0 || id >= n_expert; });
    if (bad != ids + n) {
        throw model_file_error(
            format("'%s': tensor '%s': expected ids of the %lld experts, found %d: the file is damaged",
                   file.path().c_str(), tensor->name, static_cast<long long>(n_expert), *bad));
    }
}

void check_experts(const gguf_file & file, int64_t n_expert) {
    for (const ggml_tensor * tensor : file.tensors()) {
        if (has(tensor->name, "ffn_gate_tid2eid") && tensor->type == GGML_TYPE_I32) {
            check_ids(file, tensor, n_expert);
        } else if (n_expert > n_sorted_by_insertion &&
                   (has(tensor->name, "ffn_gate_inp") || has(tensor->name, "exp_probs_b"))) {
            check_router(file, tensor);
        }
    }
}

} // namespace eagle3
