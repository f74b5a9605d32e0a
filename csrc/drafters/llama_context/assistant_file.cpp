#include "drafters/llama_context/assistant_file.h"

#include "error.h"

#include <algorithm>
#include <optional>
#include <vector>

namespace eagle3 {

namespace {

constexpr const char * arch_name     = "gemma4-assistant";
constexpr const char * arch_name_tgt = "gemma4";
constexpr int64_t      n_layer_max   = 512; // llama.cpp's own limit

// What a layer's cache holds of each token.
struct layer_kv {
    bool    has_window;
    int64_t n_head;
    int64_t head_size;
};

int32_t require_size(const gguf_file & file, const std::string & key, int64_t most) {
    const int64_t value = file.require_int(key);
    if (value < 1 || value > most) {
        throw model_file_error(format("'%s': key '%s': expected a number in 1..%lld, found %lld", file.path().c_str(),
                                      key.c_str(), static_cast<long long>(most), static_cast<long long>(value)));
    }
    return static_cast<int32_t>(value);
}

// A layer's number: the key has one for all layers, or an array with one for each.
int64_t of_layer(const gguf_file & file, const std::string & key, int32_t il, int64_t otherwise) {
    if (file.type(key) != GGUF_TYPE_ARRAY) {
        return file.get_int(key).value_or(otherwise);
    }
    const std::vector<uint32_t> values = file.get_uint_array(key);
    if (static_cast<size_t>(il) >= values.size()) {
        throw model_file_error(format("'%s': key '%s': expected a value for each of %d layers or more, found %zu",
                                      file.path().c_str(), key.c_str(), il + 1, values.size()));
    }
    return values[il];
}

layer_kv kv_of(const gguf_file & file, const std::string & arch, int32_t il) {
    const int64_t n_head     = std::max<int64_t>(of_layer(file, arch + ".attention.head_count", il, 1), 1);
    const int64_t head_size  = file.require_int(arch + ".embedding_length") / n_head;
    const bool    has_window = of_layer(file, arch + ".attention.sliding_window_pattern", il, 0) != 0;
    const char *  key        = has_window ? ".attention.key_length_swa" : ".attention.key_length";
    return { has_window, of_layer(file, arch + ".attention.head_count_kv", il, n_head),
             file.get_int(arch + key).value_or(head_size) };
}

} // namespace

assistant_file read_assistant(const gguf_file & file) {
    const std::string arch = file.get_str("general.architecture").value_or("");
    if (arch != arch_name) {
        throw model_file_error(format("'%s': expected an assistant (general.architecture %s), found '%s'",
                                      file.path().c_str(), arch_name, arch.c_str()));
    }
    assistant_file    res;
    constexpr int64_t n_max = 1 << 28;
    res.path                = file.path();
    res.n_embd              = require_size(file, arch + ".embedding_length", n_max);
    res.n_embd_tgt          = require_size(file, arch + ".embedding_length_out", n_max);
    res.n_layer             = require_size(file, arch + ".block_count", n_layer_max);
    res.n_vocab             = static_cast<int32_t>(file.array_length("tokenizer.ggml.tokens"));
    const int64_t n_nextn   = file.get_int(arch + ".nextn_predict_layers").value_or(0);
    if (n_nextn != res.n_layer) {
        throw model_file_error(format("'%s': key '%s.nextn_predict_layers': expected the %d layers that there are "
                                      "(block_count), found %lld",
                                      file.path().c_str(), arch_name, res.n_layer, static_cast<long long>(n_nextn)));
    }
    return res;
}

std::string find_kv_difference(const gguf_file & target, const gguf_file & assistant) {
    if (target.get_str("general.architecture") != arch_name_tgt) {
        return format("it reads the K/V of a target of the architecture %s, the target's is %s", arch_name_tgt,
                      target.get_str("general.architecture").value_or("").c_str());
    }
    const int32_t n_layer_tgt = require_size(target, std::string(arch_name_tgt) + ".block_count", n_layer_max);
    const int32_t n_layer     = read_assistant(assistant).n_layer;
    for (int32_t il = 0; il < n_layer; ++il) {
        const layer_kv own    = kv_of(assistant, arch_name, il);
        const int32_t  il_tgt = n_layer_tgt - (own.has_window ? 2 : 1); // as llama.cpp has it
        if (il_tgt < 0) {
            return format("it reads layer %d of the target, which has %d", il_tgt, n_layer_tgt);
        }
        const layer_kv tgt    = kv_of(target, arch_name_tgt, il_tgt);
        const auto     window = [](const layer_kv & kv) {
            return kv.has_window ? "a window" : "no window";
        };
        if (own.has_window != tgt.has_window || own.n_head != tgt.n_head || own.head_size != tgt.head_size) {
            return format("its layer %d reads the K/V of the target's layer %d: expected %lld heads of %lld values and "
                          "%s, found %lld of %lld and %s",
                          il, il_tgt, static_cast<long long>(own.n_head), static_cast<long long>(own.head_size),
                          window(own), static_cast<long long>(tgt.n_head), static_cast<long long>(tgt.head_size),
                          window(tgt));
        }
    }
    return "";
}

} // namespace eagle3
