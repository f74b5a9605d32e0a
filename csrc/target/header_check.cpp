#include "target/header_check.h"

#include "error.h"
#include "gguf_file.h"
#include "target/expert_check.h"

#include "llama.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace eagle3 {

namespace {

// The limits of llama.cpp (src/llama-hparams.h).
constexpr int64_t n_layer_max  = 512;
constexpr int64_t n_expert_max = 1024;

// Numbers that llama.cpp divides by, and the architectures for which it does. Numbers without a default are 0 if the
// key is missing.
struct divisor {
    const char *                  key;
    std::vector<std::string_view> archs;
    bool                          has_default = true;
};

const std::vector<divisor> divisors = {
    { "full_attention_interval", { "minimax-01", "qwen35", "qwen35moe", "qwen3next", "qwen4exp" } },
    { "ssm.group_count",
      { "falcon-h1", "granitehybrid", "mamba2", "nemotron_h", "nemotron_h_moe", "qwen35", "qwen35moe", "qwen3next",
        "qwen4exp" } },
    { "ssm.time_step_rank",
      { "falcon-h1", "granitehybrid", "mamba2", "nemotron_h", "nemotron_h_moe", "plamo2", "qwen35", "qwen35moe",
        "qwen3next", "qwen4exp" } },
    { "attention.output_group_count", { "deepseek4" } },
    { "attention.head_count", { "deepseek2", "deepseek2-ocr", "olmo2", "phimoe" }, false },
    { "expert_count", { "qwen35moe", "qwen4exp" }, false },
    { "expert_used_count", { "nemotron_h_moe", "qwen35moe", "qwen3next", "qwen4exp" } },
    { "wkv.head_size", { "arwkv7", "rwkv6", "rwkv6qwen2", "rwkv7" } },
};

class header {
  public:
    header(const gguf_file & file, const kv_overrides & overrides) : file_(file), overrides_(overrides) {
        arch_ = file.get_str("general.architecture").value_or("");
    }

    const std::string & arch() const { return arch_; }

    std::string key(const char * name) const { return arch_ + "." + name; }

    // A number as llama.cpp reads it; none if it is absent, or of a type that llama.cpp does not take.
    std::optional<int64_t> number(const char * name) const {
        const std::string k  = key(name);
        const auto        it = overrides_.find(k);
        if (it != overrides_.end() && std::holds_alternative<int64_t>(it->second)) {
            return static_cast<uint32_t>(std::get<int64_t>(it->second));
        }
        return file_.type(k) == GGUF_TYPE_UINT32 ? file_.get_int(k) : std::nullopt;
    }

    // The same for a number with a fraction.
    std::optional<double> real(const char * name) const {
        const std::string k  = key(name);
        const auto        it = overrides_.find(k);
        if (it != overrides_.end() && std::holds_alternative<double>(it->second)) {
            return std::get<double>(it->second);
        }
        return file_.type(k) == GGUF_TYPE_FLOAT32 ? file_.get_float(k) : std::nullopt;
    }

    bool has(const char * name) const { return file_.has_key(key(name)) || overrides_.count(key(name)) > 0; }

    // The same for a key that may have one number for each layer: the smallest and the largest.
    std::optional<std::array<int64_t, 2>> range(const char * name) const {
        const std::string k = key(name);
        if (file_.type(k) != GGUF_TYPE_ARRAY) {
            const auto value = number(name);
            return value ? std::optional<std::array<int64_t, 2>>({ *value, *value }) : std::nullopt;
        }
        const gguf_type item = file_.item_type(k);
        if ((item != GGUF_TYPE_UINT32 && item != GGUF_TYPE_INT32) || file_.array_length(k) == 0) {
            return std::nullopt;
        }
        const std::vector<uint32_t> values = file_.get_uint_array(k);
        const auto [low, high]             = std::minmax_element(values.begin(), values.end());
        return std::array<int64_t, 2>{ *low, *high };
    }

    std::string text(const char * name) const {
        const std::string k  = key(name);
        const auto        it = overrides_.find(k);
        if (it != overrides_.end() && std::holds_alternative<std::string>(it->second)) {
            return std::get<std::string>(it->second);
        }
        return file_.type(k) == GGUF_TYPE_STRING ? *file_.get_str(k) : "";
    }

    [[noreturn]] void fail(const char * name, const std::string & what) const {
        throw model_file_error(format("'%s': key '%s': %s. The file is damaged, or was made for another version of "
                                      "llama.cpp: fetch it again, or convert the model anew.",
                                      file_.path().c_str(), key(name).c_str(), what.c_str()));
    }

    void check_range(const char * name, int64_t low, int64_t high) const {
        const auto value = number(name);
        if (value && (*value < low || *value > high)) {
            fail(name, format("expected %lld to %lld, found %lld", static_cast<long long>(low),
                              static_cast<long long>(high), static_cast<long long>(*value)));
        }
    }

  private:
    const gguf_file &    file_;
    const kv_overrides & overrides_;
    std::string          arch_;
};

void check_layers(const header & h) {
    h.check_range("block_count", 1, n_layer_max);
    h.check_range("nextn_predict_layers", 0, h.number("block_count").value_or(n_layer_max));
    h.check_range("context_length", 0, std::numeric_limits<int32_t>::max());
}

void check_expert_counts(const header & h) {
    int64_t n_expert = h.number("expert_count").value_or(0);
    // for these, one expert means a dense model
    if ((h.arch() == "hunyuan_vl" || h.arch() == "hunyuan-dense") && n_expert <= 1) {
        return;
    }
    h.check_range("expert_count", 0, n_expert_max);
    const int64_t n_used = h.range("expert_used_count").value_or(std::array<int64_t, 2>{ 0, 0 })[1];
    if (n_used > n_expert || (n_expert > 0 && n_used == 0)) {
        h.fail("expert_used_count",
               format("expected %d to the %lld experts that there are (expert_count), found %lld", n_expert > 0,
                      static_cast<long long>(n_expert), static_cast<long long>(n_used)));
    }
    const int64_t n_groups = h.number("expert_group_count").value_or(0);
    if (n_groups > 0 && n_groups >= n_expert) {
        h.fail("expert_group_count",
               format("expected fewer groups than there are experts (expert_count), found %lld and %lld",
                      static_cast<long long>(n_groups), static_cast<long long>(n_expert)));
    }
    if (n_groups <= 1) {
        return;
    }
    if (n_expert % n_groups != 0) {
        h.fail("expert_group_count", format("expected a divisor of the %lld experts (expert_count), found %lld",
                                            static_cast<long long>(n_expert), static_cast<long long>(n_groups)));
    }
    const int64_t n_groups_used = h.number("expert_group_used_count").value_or(0);
    if (n_groups_used <= 0 || n_groups_used >= n_groups) {
        h.fail("expert_group_used_count",
               format("expected at least 1 and fewer than the %lld groups (expert_group_count), found %lld",
                      static_cast<long long>(n_groups), static_cast<long long>(n_groups_used)));
    }
}

void check_divisors(const header & h) {
    for (const divisor & d : divisors) {
        if (std::find(d.archs.begin(), d.archs.end(), h.arch()) == d.archs.end()) {
            continue;
        }
        const auto range = h.range(d.key);
        if ((range && (*range)[0] == 0) || (!d.has_default && !h.has(d.key))) {
            h.fail(d.key, format("expected 1 or more%s", range ? ", found 0" : ", and it is missing"));
        }
    }
    const int64_t n_embd    = h.number("embedding_length").value_or(0);
    const int64_t head_size = h.number("wkv.head_size").value_or(0);
    if (head_size > n_embd) {
        h.fail("wkv.head_size", format("expected at most the embedding_length %lld, found %lld",
                                       static_cast<long long>(n_embd), static_cast<long long>(head_size)));
    }
}

void check_rope(const header & h) {
    const std::string scaling = h.text("rope.scaling.type");
    const auto        known   = { "", "none", "linear", "yarn", "longrope" };
    if (std::find(known.begin(), known.end(), scaling) == known.end()) {
        h.fail("rope.scaling.type", format("expected none, linear, yarn or longrope, found '%.40s'", scaling.c_str()));
    }
    for (const char * key : { "rope.freq_base", "rope.freq_base_swa" }) {
        const auto base = h.real(key);
        if (base && !(*base > 0.0 && std::isfinite(*base))) {
            h.fail(key, format("expected a number above 0, found %g", *base));
        }
    }
    const auto factor = h.real("rope.scaling.factor");
    if (factor && !(*factor >= 0.0 && std::isfinite(*factor))) { // llama.cpp takes 0 for 1
        h.fail("rope.scaling.factor", format("expected a number of at least 0, found %g", *factor));
    }
}

// llama.cpp asserts that no two tokens have the same text.
void check_tokens(const gguf_file & file) {
    const char * key = "tokenizer.ggml.tokens";
    if (file.type(key) != GGUF_TYPE_ARRAY || file.item_type(key) != GGUF_TYPE_STRING) {
        return;
    }
    const auto                                   texts = file.get_str_array(key);
    std::unordered_map<std::string_view, size_t> ids;
    ids.reserve(texts.size());
    for (size_t i = 0; i < texts.size(); ++i) {
        if (texts[i].empty()) {
            continue; // llama.cpp gives such a token another text
        }
        const auto [it, is_new] = ids.emplace(texts[i], i);
        if (!is_new) {
            throw model_file_error(format("'%s': key '%s': tokens %zu and %zu have the same text '%.40s': the file is "
                                          "damaged, fetch it again or convert the model anew",
                                          file.path().c_str(), key, it->second, i, texts[i].data()));
        }
    }
}

// The graphs of these architectures need a bias for each convolution; their loaders do not.
void check_tensors(const header & h, const gguf_file & file) {
    for (const char * arch : { "falcon-h1", "granitehybrid", "nemotron_h", "nemotron_h_moe" }) {
        for (const ggml_tensor * t : h.arch() == arch ? file.tensors() : std::vector<const ggml_tensor *>()) {
            const std::string_view name = t->name;
            const size_t           at   = name.find(".ssm_conv1d.weight");
            const std::string      bias = std::string(name.substr(0, at)) + ".ssm_conv1d.bias";
            if (at != std::string_view::npos && !file.find_tensor(bias)) {
                throw model_file_error(format("'%s': tensor '%s' is missing: the file is damaged, fetch it again or "
                                              "convert the model anew",
                                              file.path().c_str(), bias.c_str()));
            }
        }
    }
}

// Checks the other files of a split model: each must exist, be complete, have its own number, and be of this model.
void check_splits(const header & h, const gguf_file & file) {
    if (!file.has_key("split.count")) {
        check_tensors(h, file);
        return; // one file
    }
    const std::string & first = file.path();
    const auto          check = [&](const char * key, gguf_type expected) {
        if (file.type(key) != expected) {
            throw model_file_error(
                format("'%s': key '%s': expected a number of type %s, found %s; split the model anew", first.c_str(),
                       key, gguf_type_name(expected), file.has_key(key) ? gguf_type_name(file.type(key)) : "none"));
        }
    };
    check("split.count", GGUF_TYPE_UINT16);
    const int32_t n_split = static_cast<int32_t>(*file.get_int("split.count"));
    if (n_split < 2) {
        return;
    }
    check("split.no", GGUF_TYPE_UINT16);
    check("split.tensors.count", GGUF_TYPE_INT32);
    if (*file.get_int("split.no") != 0) {
        return; // llama.cpp refuses it
    }
    std::vector<char> prefix(first.size() + 1);
    if (llama_split_prefix(prefix.data(), prefix.size(), first.c_str(), 0, n_split) <= 0) {
        throw model_file_error(format("'%s': this is the first of %d files of a split model, which find each other by "
                                      "their names: expected one that ends with -00001-of-%05d.gguf; rename it as the "
                                      "others are named, in their folder",
                                      first.c_str(), n_split, n_split));
    }
    const auto no_part = [&](const std::string & path, const std::string & what) {
        return model_file_error(format("'%s': %s: expected a file of the same model as '%s', fetch all %d files anew",
                                       path.c_str(), what.c_str(), first.c_str(), n_split));
    };
    const auto n_tensors = [](const gguf_file & part) {
        const char * key = "split.tensors.count";
        return part.type(key) == GGUF_TYPE_INT32 ? part.get_int(key) : std::nullopt;
    };
    std::set<std::string> names;
    for (const ggml_tensor * t : file.tensors()) {
        names.insert(t->name);
    }
    std::vector<char> path(first.size() + 32);
    for (int32_t i = 1; i < n_split; ++i) {
        llama_split_path(path.data(), path.size(), prefix.data(), i, n_split);
        const gguf_file part(path.data());
        if (part.type("split.no") != GGUF_TYPE_UINT16 || *part.get_int("split.no") != i) {
            throw no_part(path.data(), format("key 'split.no': expected %d, of file %d", i, i + 1));
        }
        if (part.type("split.count") == GGUF_TYPE_UINT16 && *part.get_int("split.count") != n_split) {
            throw no_part(path.data(), format("key 'split.count': expected %d, found %d", n_split,
                                              static_cast<int>(*part.get_int("split.count"))));
        }
        if (n_tensors(part) && n_tensors(part) != n_tensors(file)) {
            throw no_part(path.data(), "key 'split.tensors.count': found another number of tensors");
        }
        for (const ggml_tensor * t : part.tensors()) {
            if (!names.insert(t->name).second) {
                throw no_part(path.data(), format("tensor '%s' is in another of the files too", t->name));
            }
        }
        check_experts(part, h.number("expert_count").value_or(0));
    }
    if (n_tensors(file) && *n_tensors(file) != static_cast<int64_t>(names.size())) {
        throw no_part(path.data(), format("all files have %zu tensors, expected %d (key 'split.tensors.count')",
                                          names.size(), static_cast<int>(*n_tensors(file))));
    }
}

} // namespace

size_t check_header(const std::string & path, const kv_overrides & overrides) {
    const gguf_file file(path);
    const header    h(file, overrides);
    file.check_numbers();
    check_layers(h);
    check_expert_counts(h);
    check_divisors(h);
    check_rope(h);
    check_tokens(file);
    check_experts(file, h.number("expert_count").value_or(0));
    check_splits(h, file);
    return file.data_offset();
}

} // namespace eagle3
