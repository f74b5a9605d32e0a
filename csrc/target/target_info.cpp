#include "target/target_info.h"

#include "error.h"
#include "gguf_file.h"
#include "target/arch_table.h"

#include "llama.h"

#include <algorithm>
#include <string_view>

namespace eagle3 {

// why: the architecture's own reason, if it has one.
static std::string find_why_no_target(const gguf_file & file, const std::string & arch, const char * why) {
    if (why != nullptr) {
        return why;
    }
    // an embedding model has the architecture of the model that it was made from
    const int64_t pooling = file.get_int(arch + ".pooling_type").value_or(0);
    if (pooling >= LLAMA_POOLING_TYPE_MEAN && pooling <= LLAMA_POOLING_TYPE_RANK) {
        return "its header asks for pooling: it is an embedding model";
    }
    if (!file.get_bool(arch + ".attention.causal").value_or(true)) {
        return "its tokens attend in both directions: it does not predict the next one";
    }
    return "";
}

// Does llama.cpp end the process for this block? The block of deepseek4 has a window, so llama.cpp's cache for layers
// without one is empty. If keys are as long as the indexer's, llama.cpp divides by that cache's length of keys.
static bool divides_by_zero(const gguf_file & file, const std::string & arch) {
    const auto n_key = file.get_int(arch + ".attention.key_length");
    return arch == "deepseek4" && n_key && n_key == file.get_int(arch + ".attention.indexer.key_length");
}

std::string find_other_kind(const std::string & path) {
    const gguf_file   file(path);
    const std::string type = file.get_str("general.type").value_or("");
    const std::string arch = file.get_str("general.architecture").value_or("");
    if (type == "mmproj" || arch == "clip") {
        return "a projector of images and sounds (mmproj): mmproj_path takes it";
    }
    if (type == "adapter" || file.has_key("adapter.type")) {
        return "a LoRA adapter: lora, --lora takes it, beside its model";
    }
    if (type == "imatrix" || arch == "imatrix" || file.has_key("imatrix.datasets")) {
        return "an importance matrix, which llama.cpp's quantization reads: it is no model";
    }
    if (arch == "controlvector") {
        return "a control vector: it is no model, and is not supported here";
    }
    return "";
}

// Does one of a model's files have a tensor whose name begins so? True also if one of them cannot be read.
static bool has_tensor(const gguf_file & file, const std::string & prefix) {
    const auto is_in = [&prefix](const gguf_file & part) {
        const auto tensors = part.tensors();
        return std::any_of(tensors.begin(), tensors.end(), [&prefix](const ggml_tensor * tensor) {
            return std::string_view(tensor->name).substr(0, prefix.size()) == prefix;
        });
    };
    if (is_in(file)) {
        return true;
    }
    const auto n_split = static_cast<int32_t>(std::min<int64_t>(file.get_int("split.count").value_or(1), 1 << 16));
    std::vector<char> name(file.path().size() + 32);
    if (n_split < 2 || llama_split_prefix(name.data(), name.size(), file.path().c_str(), 0, n_split) <= 0) {
        return n_split > 1;
    }
    const std::string first = name.data();
    for (int32_t i = 1; i < n_split; ++i) {
        llama_split_path(name.data(), name.size(), first.c_str(), i, n_split);
        try {
            if (is_in(gguf_file(name.data()))) {
                return true;
            }
        } catch (const model_file_error &) {
            return true; // loading will report what is missing
        }
    }
    return false;
}

// Does a header have an array of numbers by layer, whose length llama.cpp checks against the number of layers?
static bool has_layer_arrays(const gguf_file & file, const std::string & arch) {
    const auto names = { "attention.head_count", "attention.head_count_kv",    "attention.recurrent_layers",
                         "expert_used_count",    "expert_feed_forward_length", "feed_forward_length",
                         "swiglu_clamp_exp",     "swiglu_clamp_shexp" };
    return std::any_of(names.begin(), names.end(),
                       [&](const char * name) { return file.type(arch + "." + name) == GGUF_TYPE_ARRAY; });
}

target_info read_target_info(const std::string & path) {
    const gguf_file file(path);

    if (file.type("split.no") == GGUF_TYPE_UINT16 && *file.get_int("split.no") > 0) {
        throw model_file_error(
            format("'%s': expected the first file of a split model, found file %lld of %lld: give the "
                   "one that ends with -00001-of-%05lld.gguf",
                   path.c_str(), static_cast<long long>(*file.get_int("split.no") + 1),
                   static_cast<long long>(file.get_int("split.count").value_or(0)),
                   static_cast<long long>(file.get_int("split.count").value_or(0))));
    }
    target_info res;
    res.path = path;
    res.arch = file.get_str("general.architecture").value_or("");
    if (res.arch.empty()) {
        throw model_file_error(format("'%s': key 'general.architecture' is missing", path.c_str()));
    }
    res.name                  = file.get_str("general.name").value_or("");
    const int64_t n_layer_all = file.require_int(res.arch + ".block_count");
    const int64_t n_nextn     = file.get_int(res.arch + ".nextn_predict_layers").value_or(0);
    const int64_t n_loops     = file.get_int(res.arch + ".num_loops").value_or(1);
    res.n_embd                = file.require_int(res.arch + ".embedding_length");
    res.n_ctx_train           = file.get_int(res.arch + ".context_length").value_or(0);
    res.file_size             = file.file_size();

    res.n_vocab = file.array_length("tokenizer.ggml.tokens");
    if (res.n_vocab == 0) {
        res.n_vocab = file.get_int(res.arch + ".vocab_size").value_or(0);
    }
    for (const char * name : { "bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "mask", "fim_pre",
                               "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep" }) {
        const std::string key = format("tokenizer.ggml.%s_token_id", name);
        if (file.type(key) == GGUF_TYPE_UINT32 && *file.get_int(key) >= res.n_vocab && res.n_vocab > 0) {
            res.unknown_ids[key] = *file.get_int(key);
        }
    }
    constexpr int64_t n_streams_max = 64;
    // llama.cpp takes 512 layers at most
    constexpr int64_t n_max         = 512;
    const bool        in_range      = std::max({ n_layer_all, n_nextn, n_loops }) <= n_max && n_nextn >= 0;
    const int64_t     n_layer       = in_range ? (n_layer_all - n_nextn) * n_loops : 0;
    if (n_layer <= 0 || n_layer > n_max || res.n_embd <= 0) {
        throw model_file_error(format("'%s': expected 1 to %lld layers and a width, found block_count %lld, "
                                      "nextn_predict_layers %lld, num_loops %lld and embedding_length %d",
                                      path.c_str(), static_cast<long long>(n_max), static_cast<long long>(n_layer_all),
                                      static_cast<long long>(n_nextn), static_cast<long long>(n_loops), res.n_embd));
    }
    res.n_layer = static_cast<int32_t>(n_layer);

    res.why_no_target          = find_why_no_target(file, res.arch, why_no_target(res.arch));
    res.why_no_text            = find_why_no_target(file, res.arch, why_no_text(res.arch));
    const arch_graph  graph    = find_arch_graph(res.arch);
    const std::string block    = "blk." + std::to_string(n_layer_all - n_nextn) + ".";
    const bool        is_split = file.get_int("split.count").value_or(1) > 1; // it may be in another file
    res.has_trunk              = n_nextn == 0 || is_split || file.find_tensor("blk.0.attn_norm.weight");
    if (n_nextn > 0 && has_tensor(file, block + "nextn.eh_proj.weight")) {
        res.n_layer_nextn = static_cast<int32_t>(n_nextn);
    } else if (n_nextn > 0 && res.has_trunk && !has_tensor(file, block)) {
        res.n_layer_gone  = static_cast<int32_t>(n_nextn);
        bool is_rest_gone = true; // llama.cpp counts tensors, and skips only those of layers that it knows
        for (int64_t il = n_layer_all - n_nextn + 1; il < n_layer_all; ++il) {
            is_rest_gone = is_rest_gone && !has_tensor(file, "blk." + std::to_string(il) + ".");
        }
        if (is_rest_gone && !has_layer_arrays(file, res.arch)) {
            res.keys_without_block = { { res.arch + ".block_count", n_layer_all - n_nextn },
                                       { res.arch + ".nextn_predict_layers", 0 } };
        }
    }
    res.nextn               = graph.nextn;
    res.runs_block          = graph.block && !divides_by_zero(file, res.arch);
    const int64_t n_streams = graph.nextn > 1 ? file.get_int(res.arch + ".hyper_connection.count").value_or(1) : 1;
    res.n_embd_nextn        = static_cast<int32_t>(res.n_embd * std::clamp<int64_t>(n_streams, 1, n_streams_max));
    for (int32_t b = 0; b <= res.n_layer + 1; ++b) {
        if (graph.publishes(b, res.n_layer) || graph.readable(b, res.n_layer)) {
            res.boundaries.push_back(b);
        }
    }
    return res;
}

} // namespace eagle3
