#pragma once

#include "gguf_file.h"

#include <cstdint>
#include <string>
#include <vector>

namespace eagle3 {

// The parameters of an EAGLE-3 head, read from the header of its GGUF file and checked for consistency, without any
// weights. The three dialects differ in the names of a few keys, see docs/checkpoints.md.
struct head_hparams {
    std::string path;
    std::string arch; // general.architecture: "eagle3", or "eagle3-ext" for what llama.cpp cannot run
    std::string
        dialect; // "upstream" (llama.cpp), "fork" (SpecDrift's llama.cpp), "extended" (upstream's keys plus ours)

    std::vector<int32_t> boundaries;     // empty if use_aux_hidden_state is false
    std::string          boundaries_why; // how the converter found them, empty if the file does not tell

    int32_t n_embd      = 0; // H_d, width of the head
    int32_t n_embd_tgt  = 0; // H_t, width of the target
    int32_t n_layer     = 1;
    int32_t n_ff        = 0;
    int32_t n_head      = 0;
    int32_t n_head_kv   = 0;
    int32_t n_embd_head = 0; // values of a head in the cache; with MLA kv_lora_rank + n_rot for all heads together
    int32_t n_vocab_dft = 0; // V_d: rows of the head's own lm_head or of d2t, 0 = the target's whole vocabulary
    int32_t n_vocab     = 0; // size of the target's vocabulary by the file, 0 = the file does not tell

    bool norm_before_residual = false;
    bool norm_before_fc       = false;
    bool fc_norm              = false;
    bool norm_output          = false;
    bool use_aux_hidden_state = true;

    // multi-head latent attention, as DeepSeek's: K and V of all heads are made from one compressed row
    int32_t q_lora_rank   = 0; // 0 = q is not compressed
    int32_t kv_lora_rank  = 0; // 0 = ordinary attention
    int32_t n_embd_nope   = 0; // values of a head of q and k besides the n_rot that are rotated
    int32_t n_embd_head_v = 0; // of a head of v

    float attn_scale = 0.0f; // factor of attention's scores, 0 = 1 / sqrt(n_embd_head)

    // P-EAGLE drafts all tokens in one pass: rows after the target's last one have mask_hidden as features and this
    // token's embedding. -1 = the head drafts one token after another.
    int32_t mask_token = -1;

    bool has_tok_embd = false; // own token embedding, else the target's
    bool has_output   = false; // own lm_head, else the target's
    bool has_d2t      = false; // draft vocabulary

    int32_t     sliding_window = 0; // 0 = full attention
    std::string hidden_act     = "silu";
    float       rms_eps        = 1e-5f;
    float       logit_scale    = 1.0f;

    int32_t     n_rot            = 0;
    float       rope_freq_base   = 10000.0f;
    std::string rope_scaling     = "none"; // "none", "linear" or "yarn"; llama3 scaling is the tensor rope_freqs
    float       rope_freq_scale  = 1.0f;
    int32_t     rope_n_ctx_orig  = 0;
    float       rope_ext_factor  = 0.0f;
    float       rope_attn_factor = 1.0f;
    float       rope_beta_fast   = 32.0f;
    float       rope_beta_slow   = 1.0f;

    // M-RoPE: how many pairs of channels each of the four positions rotates, and whether these are interleaved. Empty:
    // there is one position.
    std::vector<int32_t> rope_sections;
    bool                 rope_interleaved = false;

    int32_t n_pos() const { return rope_sections.empty() ? 1 : 4; } // of a row

    bool is_mla() const { return kv_lora_rank > 0; }
    bool is_parallel() const { return mask_token >= 0; }

    int32_t n_embd_q() const { return n_head * (is_mla() ? n_embd_nope + n_rot : n_embd_head); }
    int32_t n_embd_k() const { return n_head_kv * n_embd_head; }
    int32_t n_embd_attn() const { return n_head * (is_mla() ? n_embd_head_v : n_embd_head); } // into wo

    // The width of a feature row: all boundaries side by side.
    int32_t n_embd_feat() const {
        return use_aux_hidden_state ? static_cast<int32_t>(boundaries.size()) * n_embd_tgt : n_embd_tgt;
    }
};

// Throws model_file_error with the key or tensor, what was expected and what was found.
head_hparams read_head(const gguf_file & file);

} // namespace eagle3
