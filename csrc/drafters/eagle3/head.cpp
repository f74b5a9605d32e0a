#include "drafters/eagle3/head.h"

#include "error.h"

#include <cmath>
#include <set>

namespace eagle3 {

namespace {

int32_t positive(const gguf_file & file, const std::string & key, int64_t value) {
    if (value <= 0 || value > (1 << 28)) {
        throw model_file_error(format("'%s': key '%s': expected a positive size, found %lld", file.path().c_str(),
                                      key.c_str(), static_cast<long long>(value)));
    }
    return static_cast<int32_t>(value);
}

int32_t require_size(const gguf_file & file, const std::string & key) {
    return positive(file, key, file.require_int(key));
}

int32_t size_or(const gguf_file & file, const std::string & key, int32_t value) {
    return positive(file, key, file.get_int(key).value_or(value));
}

void read_boundaries(const gguf_file & file, head_hparams & hparams) {
    const auto target_layers  = file.get_int_array("eagle3.target_layers");
    const auto extract_layers = file.get_int_array("eagle3.extract_layers");
    if (!hparams.use_aux_hidden_state) {
        return;
    }
    if (!target_layers && !extract_layers) {
        throw model_file_error(
            format("'%s': key 'eagle3.target_layers' is missing: the hidden states that the head reads are not known",
                   file.path().c_str()));
    }
    hparams.boundaries = target_layers ? *target_layers : *extract_layers;
    const std::set<int32_t> unique(hparams.boundaries.begin(), hparams.boundaries.end());
    if (hparams.boundaries.empty() || unique.size() != hparams.boundaries.size() || *unique.begin() < 0) {
        throw model_file_error(format(
            "'%s': key 'eagle3.target_layers': expected one or more different boundaries >= 0", file.path().c_str()));
    }
}

// Reads llama.cpp's keys for MLA: key_length and value_length are those of the cached row, which all heads share.
void read_mla(const gguf_file & file, head_hparams & hparams) {
    hparams.kv_lora_rank = require_size(file, "eagle3.attention.kv_lora_rank");
    hparams.q_lora_rank =
        file.has_key("eagle3.attention.q_lora_rank") ? require_size(file, "eagle3.attention.q_lora_rank") : 0;
    hparams.n_embd_head_v = require_size(file, "eagle3.attention.value_length_mla");
    hparams.n_rot         = require_size(file, "eagle3.rope.dimension_count");
    const int32_t n_key   = require_size(file, "eagle3.attention.key_length_mla");
    hparams.n_embd_nope   = n_key - hparams.n_rot;
    hparams.attn_scale    = 1.0f / std::sqrt(static_cast<float>(n_key));
    if (hparams.n_embd_nope <= 0) {
        throw model_file_error(
            format("'%s': key 'eagle3.attention.key_length_mla': expected more than rope.dimension_count %d, found %d",
                   file.path().c_str(), hparams.n_rot, n_key));
    }
    if (hparams.n_head_kv != 1 || hparams.n_embd_head != hparams.kv_lora_rank + hparams.n_rot ||
        require_size(file, "eagle3.attention.value_length") != hparams.kv_lora_rank) {
        throw model_file_error(format(
            "'%s': expected of an MLA head head_count_kv 1, value_length %d (kv_lora_rank) and key_length %d (and "
            "rope.dimension_count), found %d, %d and %d",
            file.path().c_str(), hparams.kv_lora_rank, hparams.kv_lora_rank + hparams.n_rot, hparams.n_head_kv,
            require_size(file, "eagle3.attention.value_length"), hparams.n_embd_head));
    }
}

void read_rope(const gguf_file & file, head_hparams & hparams) {
    hparams.n_rot          = size_or(file, "eagle3.rope.dimension_count", hparams.n_embd_head);
    hparams.rope_freq_base = static_cast<float>(file.get_float("eagle3.rope.freq_base").value_or(10000.0));
    hparams.rope_scaling   = file.get_str("eagle3.rope.scaling.type").value_or("none");
    if (hparams.n_rot > hparams.n_embd_head || hparams.n_rot % 2 != 0) {
        throw model_file_error(
            format("'%s': key 'eagle3.rope.dimension_count': expected an even number <= %d, found %d",
                   file.path().c_str(), hparams.n_embd_head, hparams.n_rot));
    }
    if (!(hparams.rope_freq_base > 0.0f)) {
        throw model_file_error(
            format("'%s': key 'eagle3.rope.freq_base': expected a positive number", file.path().c_str()));
    }
    hparams.rope_sections    = file.get_int_array("eagle3.rope.dimension_sections").value_or(std::vector<int32_t>());
    hparams.rope_interleaved = file.get_bool("eagle3.rope.mrope_interleaved").value_or(false);
    if (!hparams.rope_sections.empty()) {
        hparams.rope_sections.resize(std::max<size_t>(4, hparams.rope_sections.size()));
        int64_t n_pairs = 0;
        bool    valid   = hparams.rope_sections.size() == 4 && !hparams.is_mla();
        for (const int32_t n : hparams.rope_sections) {
            valid = valid && n >= 0;
            n_pairs += n;
        }
        if (!valid || n_pairs != hparams.n_rot / 2) {
            throw model_file_error(format(
                "'%s': key 'eagle3.rope.dimension_sections': expected at most four numbers with a sum of %d, half "
                "of rope.dimension_count, and no MLA",
                file.path().c_str(), hparams.n_rot / 2));
        }
    }
    if (hparams.rope_scaling == "none") {
        return;
    }
    if (hparams.rope_scaling != "linear" && hparams.rope_scaling != "yarn") {
        throw model_file_error(format("'%s': key 'eagle3.rope.scaling.type': expected none, linear or yarn, found '%s'",
                                      file.path().c_str(), hparams.rope_scaling.c_str()));
    }

    const double factor = file.get_float("eagle3.rope.scaling.factor").value_or(1.0);
    if (!(factor > 0.0)) {
        throw model_file_error(
            format("'%s': key 'eagle3.rope.scaling.factor': expected a positive number", file.path().c_str()));
    }
    hparams.rope_freq_scale  = static_cast<float>(1.0 / factor);
    hparams.rope_attn_factor = static_cast<float>(file.get_float("eagle3.rope.scaling.attn_factor").value_or(1.0));
    if (hparams.rope_scaling == "yarn") {
        // ggml multiplies by 1 + 0.1 ln(factor) itself, which is YaRN's default attention factor
        hparams.rope_n_ctx_orig =
            size_or(file, "eagle3.rope.scaling.original_context_length", size_or(file, "eagle3.context_length", 2048));
        hparams.rope_ext_factor =
            static_cast<float>(file.get_float("eagle3.rope.scaling.yarn_ext_factor").value_or(1.0));
        hparams.rope_beta_fast =
            static_cast<float>(file.get_float("eagle3.rope.scaling.yarn_beta_fast").value_or(32.0));
        hparams.rope_beta_slow = static_cast<float>(file.get_float("eagle3.rope.scaling.yarn_beta_slow").value_or(1.0));
    }
}

} // namespace

head_hparams read_head(const gguf_file & file) {
    head_hparams hparams;
    hparams.path = file.path();
    hparams.arch = file.get_str("general.architecture").value_or("");
    if (hparams.arch != "eagle3" && hparams.arch != "eagle3-ext") {
        throw model_file_error(
            format("'%s': expected an EAGLE-3 head (general.architecture eagle3 or eagle3-ext), found '%s'",
                   file.path().c_str(), hparams.arch.c_str()));
    }
    const bool is_fork = file.has_key("eagle3.extract_layers") || file.find_tensor("blk.0.hidden_norm.weight");
    hparams.dialect    = is_fork ? "fork" : hparams.arch == "eagle3" ? "upstream" : "extended";

    hparams.n_embd      = require_size(file, "eagle3.embedding_length");
    hparams.n_embd_tgt  = size_or(file, "eagle3.target_hidden_size", hparams.n_embd);
    hparams.n_layer     = size_or(file, "eagle3.block_count", 1);
    hparams.n_ff        = require_size(file, "eagle3.feed_forward_length");
    hparams.n_head      = require_size(file, "eagle3.attention.head_count");
    hparams.n_head_kv   = size_or(file, "eagle3.attention.head_count_kv", hparams.n_head);
    hparams.n_embd_head = file.has_key("eagle3.attention.key_length")
                              ? require_size(file, "eagle3.attention.key_length")
                              : hparams.n_embd / hparams.n_head;
    if (hparams.n_head % hparams.n_head_kv != 0) {
        throw model_file_error(format("'%s': expected head_count to be a multiple of head_count_kv, found %d and %d",
                                      file.path().c_str(), hparams.n_head, hparams.n_head_kv));
    }
    if (file.has_key("eagle3.attention.kv_lora_rank")) {
        read_mla(file, hparams);
    } else if (size_or(file, "eagle3.attention.value_length", hparams.n_embd_head) != hparams.n_embd_head) {
        throw model_file_error(format("'%s': key 'eagle3.attention.value_length': heads with other value than key "
                                      "lengths are not supported, unless they are MLA (attention.kv_lora_rank)",
                                      file.path().c_str()));
    }
    hparams.attn_scale =
        static_cast<float>(file.get_float("eagle3.attention.scale").value_or(static_cast<double>(hparams.attn_scale)));

    hparams.norm_before_residual = file.get_bool("eagle3.norm_before_residual").value_or(false);
    hparams.norm_before_fc       = file.get_bool("eagle3.norm_before_fc").value_or(false);
    hparams.fc_norm              = file.get_bool("eagle3.fc_norm").value_or(false);
    hparams.norm_output          = file.get_bool("eagle3.norm_output").value_or(false);
    hparams.use_aux_hidden_state = file.get_bool("eagle3.use_aux_hidden_state").value_or(true);
    if (hparams.norm_before_fc && hparams.fc_norm) {
        throw model_file_error(format("'%s': norm_before_fc and fc_norm exclude each other", file.path().c_str()));
    }

    const int64_t window   = file.get_int("eagle3.attention.sliding_window").value_or(0);
    hparams.sliding_window = window > 0 && window < (1 << 28) ? static_cast<int32_t>(window) : 0;
    hparams.hidden_act     = file.get_str("eagle3.hidden_act").value_or("silu");
    if (hparams.hidden_act != "silu" && hparams.hidden_act != "gelu" && hparams.hidden_act != "gelu_pytorch_tanh") {
        throw model_file_error(
            format("'%s': key 'eagle3.hidden_act': expected silu, gelu or gelu_pytorch_tanh, found '%s'",
                   file.path().c_str(), hparams.hidden_act.c_str()));
    }
    hparams.rms_eps     = static_cast<float>(file.get_float("eagle3.attention.layer_norm_rms_epsilon").value_or(1e-5));
    hparams.logit_scale = static_cast<float>(file.get_float("eagle3.logit_scale").value_or(1.0));
    if (!(hparams.rms_eps >= 0.0f) || !std::isfinite(hparams.rms_eps) || !std::isfinite(hparams.logit_scale)) {
        throw model_file_error(
            format("'%s': expected a layer_norm_rms_epsilon of at least 0 and a finite logit_scale, found %g and %g",
                   file.path().c_str(), hparams.rms_eps, hparams.logit_scale));
    }
    if (!(hparams.attn_scale >= 0.0f) || !std::isfinite(hparams.attn_scale)) {
        throw model_file_error(format("'%s': key 'eagle3.attention.scale': expected a positive number, found %g",
                                      file.path().c_str(), hparams.attn_scale));
    }

    read_boundaries(file, hparams);
    hparams.boundaries_why = file.get_str("eagle3.provenance.boundaries").value_or("");
    read_rope(file, hparams);

    const ggml_tensor * tok_embd = file.find_tensor("token_embd.weight");
    const ggml_tensor * output   = file.find_tensor("output.weight");
    const ggml_tensor * d2t      = file.find_tensor("d2t");

    hparams.has_tok_embd = tok_embd != nullptr;
    hparams.has_output   = output != nullptr;
    hparams.has_d2t      = d2t != nullptr;
    hparams.n_vocab      = tok_embd ? static_cast<int32_t>(tok_embd->ne[1])
                                    : static_cast<int32_t>(file.array_length("tokenizer.ggml.tokens"));
    hparams.n_vocab_dft  = d2t ? static_cast<int32_t>(d2t->ne[0]) : output ? static_cast<int32_t>(output->ne[1]) : 0;
    if (file.find_tensor("mask_hidden")) {
        const int64_t token = file.require_int("eagle3.mask_token_id");
        if (token < 0 || token >= (hparams.n_vocab > 0 ? hparams.n_vocab : 1 << 28)) {
            throw model_file_error(
                format("'%s': key 'eagle3.mask_token_id': expected a token of the vocabulary, found %lld",
                       file.path().c_str(), static_cast<long long>(token)));
        }
        hparams.mask_token = static_cast<int32_t>(token);
    }
    if (!tok_embd && hparams.n_embd != hparams.n_embd_tgt) {
        throw model_file_error(
            format("'%s': the head is %d wide, its target %d: expected a tensor 'token_embd.weight' of its own",
                   file.path().c_str(), hparams.n_embd, hparams.n_embd_tgt));
    }
    return hparams;
}

} // namespace eagle3
