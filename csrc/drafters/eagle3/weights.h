#pragma once

#include "drafters/eagle3/device.h"
#include "drafters/eagle3/head.h"
#include "drafters/eagle3/mapped_file.h"
#include "llama.h"

#include <algorithm>
#include <vector>

namespace eagle3 {

struct head_layer {
    ggml_tensor * attn_norm   = nullptr; // layer 0: input_layernorm, on the token embedding
    ggml_tensor * hidden_norm = nullptr; // layer 0 only, on the hidden row
    ggml_tensor * wq = nullptr, *wk = nullptr, *wv = nullptr, *wo = nullptr;
    // MLA: wq_a and wq_b in place of wq if q is compressed; wk_b and wv_b of each head, [in, out, n_head]
    ggml_tensor * wq_a = nullptr, *q_a_norm = nullptr, *wq_b = nullptr;
    ggml_tensor * wkv_a = nullptr, *kv_a_norm = nullptr, *wk_b = nullptr, *wv_b = nullptr;
    ggml_tensor * bq = nullptr, *bk = nullptr, *bv = nullptr, *bo = nullptr;
    ggml_tensor * q_norm = nullptr, *k_norm = nullptr;
    ggml_tensor * ffn_norm = nullptr;
    ggml_tensor * ffn_gate = nullptr, *ffn_up = nullptr, *ffn_down = nullptr;
    ggml_tensor * ffn_gate_b = nullptr, *ffn_up_b = nullptr, *ffn_down_b = nullptr;
};

// The target's tables that a head may share: views of llama.cpp's own tensors, never copies.
struct target_tables {
    explicit target_tables(const llama_model * model_tgt);

    // Tables without values, to check a head against a target that is not loaded.
    target_tables(int32_t n_vocab, int32_t n_embd, int32_t n_layer);

    int32_t n_vocab = 0;
    int32_t n_embd  = 0;
    int32_t n_layer = 0;

    const ggml_tensor * tok_embd = nullptr; // nullptr if the target has no such table
    const ggml_tensor * output   = nullptr; // lm_head; the token embedding if the target ties them

  private:
    context_ptr ctx_; // of tables without values
    buffer_ptr  buffer_;
};

// The tensors of a head on a device. Matrices are used in the mapped file if the device can read them there and has no
// faster layout for them; norms and biases are small and are copied to F32.
//
// Matrices of types wider than `type` are converted to it: drafts need no exact weights, and most of a step's time is
// spent on reading them.
class head_weights {
  public:
    head_weights(const gguf_file & file, const head_hparams & hparams, const target_tables & tables, const device & dev,
                 ggml_type type, int32_t n_threads);

    ggml_tensor * fc = nullptr, *fc_b = nullptr;
    ggml_tensor * input_norm = nullptr; // norm_before_fc: over the whole concatenation
    ggml_tensor * fc_norm    = nullptr; // [H_t, n_boundaries], one norm per boundary

    std::vector<head_layer> layers;

    ggml_tensor * output_norm = nullptr;
    ggml_tensor * output      = nullptr; // own or the target's lm_head
    ggml_tensor * rope_freqs  = nullptr; // llama3 rope scaling, one factor per rotated pair

    int32_t n_vocab_dft = 0;

    std::vector<float> mask_hidden; // P-EAGLE: features of the rows that the target has not computed, [n_embd_feat]

    // The draft vocabulary's embeddings on the device, for graphs that look tokens up: [n_embd, n_vocab_dft]. Null
    // unless load_embd_dft was called.
    ggml_tensor * embd_dft = nullptr;
    void          load_embd_dft(const device & dev);

    // [draft id]: target id, -1 if it must not be drafted; empty if the vocabularies are the same
    std::vector<llama_token> d2t;

    llama_token to_target(int32_t id_dft) const { return d2t.empty() ? id_dft : d2t[id_dft]; }

    // See drafter::leave_out.
    void leave_out(const std::vector<llama_token> & tokens);

    // Writes the embedding of a target token as F32 to dst, [n_embd].
    void get_embedding(llama_token token, float * dst) const;

    // The head's own tensors that it multiplies by.
    std::vector<const ggml_tensor *> matrices() const;

    // A hash of everything in which heads differ, for saved states.
    uint64_t fingerprint() const { return fingerprint_; }

    size_t n_bytes_shared = 0; // bytes of the target's tensors in use
    size_t n_bytes_own    = 0; // bytes of the head's own tensors
    size_t n_bytes_read   = 0; // bytes of the matrices that a draft's first graph reads, lm_head included

  private:
    struct loader;

    ggml_tensor * upload(ggml_backend_buffer_type_t buft, ggml_tensor * tensor, const void * src);
    head_layer    load_layer(loader & load, const head_hparams & hparams, int32_t il);
    void          load_d2t(const gguf_file & file, const head_hparams & hparams, const target_tables & tables);

    void get_raw_rows(int64_t first, int64_t n, uint8_t * dst) const;

    mapped_file file_;
    context_ptr ctx_;

    std::vector<buffer_ptr> buffers_;

    // The row of a token's embedding; row 0 for a token that the head does not have.
    llama_token row_of(llama_token token) const { return token >= 0 && token < tok_embd_->ne[1] ? token : 0; }

    const ggml_tensor * tok_embd_ = nullptr;
    std::vector<uint8_t> mutable row_; // one raw row of tok_embd

    uint64_t fingerprint_ = 0;
};

} // namespace eagle3
