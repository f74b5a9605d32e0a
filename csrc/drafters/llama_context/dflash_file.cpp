#include "drafters/llama_context/dflash_file.h"

#include "error.h"
#include "system.h"
#include "weight_types.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <vector>

namespace eagle3 {

namespace {

constexpr const char * arch_name      = "dflash";
constexpr int32_t      block_size_max = 1024;

int32_t require_size(const gguf_file & file, const std::string & key, int64_t value, int64_t most = 1 << 28) {
    if (value <= 0 || value > most) {
        throw model_file_error(format("'%s': key '%s': expected a number in 1..%lld, found %lld", file.path().c_str(),
                                      key.c_str(), static_cast<long long>(most), static_cast<long long>(value)));
    }
    return static_cast<int32_t>(value);
}

int32_t require_size(const gguf_file & file, const std::string & key) {
    return require_size(file, key, file.require_int(key));
}

const ggml_tensor * require_tensor(const gguf_file & file, const std::string & name) {
    const ggml_tensor * tensor = file.find_tensor(name);
    if (tensor == nullptr) {
        throw model_file_error(
            format("'%s': tensor '%s' is missing, which a block drafter needs", file.path().c_str(), name.c_str()));
    }
    return tensor;
}

void check_shape(const gguf_file & file, const ggml_tensor * tensor, int64_t ne0, int64_t ne1) {
    if (tensor->ne[0] != ne0 || tensor->ne[1] != ne1) {
        throw model_file_error(format("'%s': tensor '%s': expected the shape [%lld, %lld], found [%lld, %lld]",
                                      file.path().c_str(), tensor->name, static_cast<long long>(ne0),
                                      static_cast<long long>(ne1), static_cast<long long>(tensor->ne[0]),
                                      static_cast<long long>(tensor->ne[1])));
    }
}

// Checks the table that ggml looks up rows by, since ggml asserts that these rows exist.
void check_d2t(const gguf_file & file, const ggml_tensor * d2t, int32_t n_vocab) {
    const auto n = static_cast<size_t>(d2t->ne[0]);
    if (d2t->type != GGML_TYPE_I64 || d2t->ne[0] > n_vocab) {
        throw model_file_error(
            format("'%s': tensor 'd2t': expected at most %d numbers of 64 bits (i64), found %zu (%s)",
                   file.path().c_str(), n_vocab, n, ggml_type_name(d2t->type)));
    }
    std::vector<int64_t> ids(n);
    std::ifstream        in(path_of(file.path()), std::ios::binary);
    in.seekg(static_cast<std::streamoff>(file.tensor_offset("d2t")));
    in.read(reinterpret_cast<char *>(ids.data()), static_cast<std::streamsize>(n * sizeof(int64_t)));
    if (!in) {
        throw model_file_error(
            format("'%s': tensor 'd2t' cannot be read: is the file truncated?", file.path().c_str()));
    }
    std::vector<bool> seen(n_vocab);
    for (const int64_t id : ids) {
        if (id < 0 || id >= n_vocab || seen[id]) {
            throw model_file_error(format("'%s': tensor 'd2t': expected different tokens of the vocabulary, 0..%d, "
                                          "found %lld%s",
                                          file.path().c_str(), n_vocab - 1, static_cast<long long>(id),
                                          id >= 0 && id < n_vocab ? " twice" : ""));
        }
        seen[id] = true;
    }
}

void read_boundaries(const gguf_file & file, dflash_hparams & hparams) {
    const auto layers = file.get_int_array("dflash.target_layers");
    if (!layers || layers->empty() || *std::min_element(layers->begin(), layers->end()) < 0) {
        throw model_file_error(format("'%s': key 'dflash.target_layers': expected the layers of the target whose "
                                      "inputs the drafter reads, one or more numbers >= 0, found %s",
                                      file.path().c_str(), layers ? layers->empty() ? "none" : "others" : "no key"));
    }
    hparams.boundaries = *layers;
}

void read_kind(const gguf_file & file, dflash_hparams & hparams) {
    if (file.find_tensor("selector_hidden.weight")) {
        hparams.kind           = block_kind::dflash2;
        hparams.selector_top_k = require_size(file, "dflash.selector_top_k");
    } else if (file.find_tensor("markov_w1.weight")) {
        hparams.kind               = block_kind::dspark;
        hparams.sample_from_anchor = file.get_bool("dflash.sample_from_anchor").value_or(true);
        hparams.has_confidence     = file.find_tensor("conf_proj.weight") != nullptr;
        file.require_int("dflash.block_size"); // llama.cpp asserts it
    }
}

} // namespace

const char * dflash_hparams::kind_name() const {
    switch (kind) {
        case block_kind::dspark: return "dspark";
        case block_kind::dflash2: return "dflash2";
        default: return "dflash";
    }
}

dflash_hparams read_dflash(const gguf_file & file) {
    if (file.get_str("general.architecture") != arch_name) {
        throw model_file_error(format("'%s': expected a block drafter (general.architecture %s), found '%s'",
                                      file.path().c_str(), arch_name,
                                      file.get_str("general.architecture").value_or("").c_str()));
    }
    dflash_hparams hparams;
    hparams.path = file.path();
    if (file.has_key("dflash.hyper_connection.count")) {
        throw model_file_error(format("'%s': a block drafter made of DeepSeek-V4's layers (key "
                                      "dflash.hyper_connection.count): llama.cpp has its graph, and it does not draft "
                                      "here yet. DeepSeek-V4's own block for multi-token prediction does "
                                      "(draft_sources=('mtp',)), where the target's file has it",
                                      file.path().c_str()));
    }
    hparams.n_embd  = require_size(file, "dflash.embedding_length");
    hparams.n_layer = require_size(file, "dflash.block_count");
    hparams.n_vocab = static_cast<int32_t>(file.array_length("tokenizer.ggml.tokens"));
    hparams.block_size =
        require_size(file, "dflash.block_size", file.get_int("dflash.block_size").value_or(16), block_size_max);
    read_boundaries(file, hparams);
    read_kind(file, hparams);
    if (hparams.n_draft_max() < 1) {
        throw model_file_error(format("'%s': key 'dflash.block_size': expected 2 or more, found %d",
                                      file.path().c_str(), hparams.block_size));
    }

    const int64_t mask = file.require_int("tokenizer.ggml.mask_token_id");
    if (mask < 0 || mask >= hparams.n_vocab) {
        throw model_file_error(format("'%s': key 'tokenizer.ggml.mask_token_id': expected a token of the file's "
                                      "vocabulary, 0..%d, found %lld",
                                      file.path().c_str(), hparams.n_vocab - 1, static_cast<long long>(mask)));
    }
    hparams.mask_token = static_cast<int32_t>(mask);

    const int64_t window        = file.get_int("dflash.attention.sliding_window").value_or(0);
    hparams.sliding_window      = window > 0 && window < (1 << 28) ? static_cast<int32_t>(window) : 0;
    hparams.is_causal           = file.get_bool("dflash.attention.causal").value_or(false);
    hparams.logit_scale         = static_cast<float>(file.get_float("dflash.logit_scale").value_or(0.0));
    hparams.final_logit_softcap = static_cast<float>(file.get_float("dflash.final_logit_softcapping").value_or(0.0));
    if (!(hparams.logit_scale >= 0.0f) || !std::isfinite(hparams.logit_scale) ||
        !std::isfinite(hparams.final_logit_softcap)) {
        throw model_file_error(format("'%s': expected a dflash.logit_scale >= 0 and a finite "
                                      "dflash.final_logit_softcapping, found %g and %g",
                                      file.path().c_str(), hparams.logit_scale, hparams.final_logit_softcap));
    }

    // the encoder of the target's rows is not in the graphs that graph_check sees
    const ggml_tensor * fc   = require_tensor(file, "fc.weight");
    const ggml_tensor * norm = require_tensor(file, "enc.output_norm.weight");
    check_shape(file, fc, static_cast<int64_t>(hparams.boundaries.size()) * hparams.n_embd, hparams.n_embd);
    check_shape(file, norm, hparams.n_embd, 1);
    if (!is_matrix_type(fc->type) || norm->type != GGML_TYPE_F32) {
        throw model_file_error(format("'%s': tensors 'fc.weight' and 'enc.output_norm.weight': expected a type that "
                                      "ggml can multiply by, and f32, found %s and %s",
                                      file.path().c_str(), ggml_type_name(fc->type), ggml_type_name(norm->type)));
    }
    if (const ggml_tensor * d2t = file.find_tensor("d2t")) {
        check_d2t(file, d2t, hparams.n_vocab);
        require_tensor(file, "output.weight");
        hparams.n_vocab_dft = static_cast<int32_t>(d2t->ne[0]);
    }
    return hparams;
}

} // namespace eagle3
