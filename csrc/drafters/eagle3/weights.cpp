#include "drafters/eagle3/weights.h"

#include "devices.h"
#include "drafters/eagle3/narrow.h"
#include "error.h"
#include "fnv1a.h"
#include "llama_ext.h"
#include "lm_head.h"
#include "vocabulary.h"
#include "weight_types.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>

namespace eagle3 {

target_tables::target_tables(const llama_model * model_tgt) :
    n_vocab(llama_vocab_n_tokens(llama_model_get_vocab(model_tgt))), n_embd(llama_model_n_embd(model_tgt)),
    n_layer(llama_model_n_layer(model_tgt)), output(find_lm_head(model_tgt)) {
    for (const auto & [name, tensor] : llama_internal_get_tensor_map(model_tgt)) {
        if (name == "token_embd.weight" && (!tok_embd || ggml_backend_buffer_is_host(tensor->buffer))) {
            tok_embd = tensor; // a tied table can be there twice: prefer the one whose rows the host can read
        }
    }
}

target_tables::target_tables(int32_t n_vocab, int32_t n_embd, int32_t n_layer) :
    n_vocab(n_vocab), n_embd(n_embd), n_layer(n_layer), ctx_(make_tensor_context(1)),
    buffer_(ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), 0)) {
    ggml_tensor * table = ggml_new_tensor_2d(ctx_.get(), GGML_TYPE_F32, n_embd, n_vocab);
    table->buffer       = buffer_.get();
    tok_embd = output = table;
}

static std::string shape_str(const std::vector<int64_t> & ne) {
    std::string s = "[";
    for (size_t i = 0; i < ne.size(); ++i) {
        s += (i ? ", " : "") + std::to_string(ne[i]);
    }
    return s + "]";
}

// Finds tensors in the file, checks their shapes, places them when they are asked for, and collects what must be
// copied.
struct head_weights::loader {
    head_weights &        weights;
    const gguf_file &     file;
    const device &        dev;
    ggml_type             type; // matrices are converted to this type, unless theirs is narrower
    int32_t               n_threads;
    ggml_backend_buffer_t mapped = nullptr;          // the file as a device buffer, if the device can use host memory
    std::set<std::string> known  = { "d2t", "t2d" }; // tensors of the graph, and the tables of the vocabulary

    // A layout of weights for which the CPU has faster kernels: with Q4_0 they take three quarters of the time. That is
    // worth a copy. Null if the device has none.
    ggml_backend_buffer_type_t repack = nullptr;

    loader(head_weights & weights, const gguf_file & file, const device & dev, ggml_type type, int32_t n_threads) :
        weights(weights), file(file), dev(dev), type(type), n_threads(n_threads), repack(find_repack(dev)) {
        ggml_backend_dev_props props;
        ggml_backend_dev_get_props(dev.dev(), &props);
        if (!props.caps.buffer_from_host_ptr || !weights.file_.is_mapped()) {
            return;
        }
        size_t max_size = 0;
        for (const ggml_tensor * t : file.tensors()) {
            max_size = std::max(max_size, ggml_nbytes(t));
        }
        mapped = ggml_backend_dev_buffer_from_host_ptr(dev.dev(), weights.file_.data(), weights.file_.size(), max_size);
        if (mapped) {
            ggml_backend_buffer_set_usage(mapped, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
            weights.buffers_.emplace_back(mapped);
        }
    }

    static ggml_backend_buffer_type_t find_repack(const device & dev) {
        for (ggml_backend_buffer_type_t buft : extra_buffer_types(dev.dev())) {
            // the others are for hardware that some compilers do not serve well, such as AMX
            if (strcmp(ggml_backend_buft_name(buft), "CPU_REPACK") == 0) {
                return buft;
            }
        }
        return nullptr;
    }

    // Is there such a layout for a matrix of this type and shape?
    bool repacks(const ggml_tensor * meta) const {
        if (!repack) {
            return false;
        }
        const context_ptr ctx = make_tensor_context(3);
        const buffer_ptr  empty(ggml_backend_buft_alloc_buffer(repack, 0));
        ggml_tensor *     w = ggml_dup_tensor(ctx.get(), meta);
        ggml_tensor *     x = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, meta->ne[0], 1);
        w->buffer           = empty.get();
        return ggml_backend_supports_op(dev.backend(), ggml_mul_mat(ctx.get(), w, x));
    }

    // Returns the file's description of a tensor after checking shape and values; null if it is absent.
    const ggml_tensor * find(const std::string & name, const std::vector<int64_t> & ne, bool required) {
        known.insert(name);
        const ggml_tensor * meta = file.find_tensor(name);
        if (!meta) {
            if (required) {
                throw model_file_error(format("'%s': tensor '%s' %s is missing", file.path().c_str(), name.c_str(),
                                              shape_str(ne).c_str()));
            }
            return nullptr;
        }
        std::vector<int64_t> found(meta->ne, meta->ne + GGML_MAX_DIMS);
        while (found.size() > ne.size() && found.back() == 1) {
            found.pop_back();
        }
        if (found != ne) {
            throw model_file_error(format("'%s': tensor '%s': expected shape %s, found %s", file.path().c_str(),
                                          name.c_str(), shape_str(ne).c_str(), shape_str(found).c_str()));
        }
        if (!ggml_validate_row_data(meta->type, data(name), ggml_nbytes(meta))) {
            throw model_file_error(
                format("'%s': tensor '%s' holds NaN or infinite values: the file is damaged, or training diverged",
                       file.path().c_str(), name.c_str()));
        }
        if (ne.size() > 1 && !is_matrix_type(meta->type)) {
            throw model_file_error(format("'%s': tensor '%s': ggml multiplies no matrices of the type %s, which it has",
                                          file.path().c_str(), name.c_str(), ggml_type_name(meta->type)));
        }
        weights.fingerprint_ = fnv1a(weights.fingerprint_, name.data(), name.size());
        weights.fingerprint_ = fnv1a(weights.fingerprint_, data(name), std::min<size_t>(ggml_nbytes(meta), 4096));
        weights.n_bytes_own += ggml_nbytes(meta);
        return meta;
    }

    // With tensors that no graph here reads, the head was meant to compute something else.
    void check_all_known() const {
        std::vector<std::string> others;
        for (const ggml_tensor * t : file.tensors()) {
            if (known.count(t->name) == 0) {
                others.emplace_back(t->name);
            }
        }
        if (!others.empty()) {
            std::string names = "'" + others.front() + "'";
            for (size_t i = 1; i < std::min<size_t>(others.size(), 8); ++i) {
                names += ", '" + others[i] + "'";
            }
            throw model_file_error(format("'%s': %zu tensors are no part of an EAGLE-3 head: %s%s. It was made for "
                                          "another program, or its keys say that it has no such part",
                                          file.path().c_str(), others.size(), names.c_str(),
                                          others.size() > 8 ? ", ..." : ""));
        }
    }

    const uint8_t * data(const std::string & name) const {
        return static_cast<const uint8_t *>(weights.file_.data()) + file.tensor_offset(name);
    }

    ggml_tensor * upload(ggml_tensor * tensor, const void * src) { return weights.upload(dev.buft(), tensor, src); }

    // ne: inputs, outputs, and the number of heads if there is a matrix for each.
    ggml_tensor * matrix(const std::string & name, const std::vector<int64_t> & ne) {
        const ggml_tensor * meta = find(name, ne, true);
        ggml_tensor *       tensor =
            ggml_new_tensor(weights.ctx_.get(), narrower(meta, type), static_cast<int>(ne.size()), ne.data());
        ggml_set_name(tensor, name.c_str());
        std::vector<uint8_t> converted;
        if (tensor->type != meta->type) {
            converted = convert_matrix(meta, data(name), tensor->type, n_threads);
            weights.n_bytes_own -= ggml_nbytes(meta) - ggml_nbytes(tensor);
        }
        weights.n_bytes_read += ggml_nbytes(tensor);
        const uint8_t * src = converted.empty() ? data(name) : converted.data();
        if (ne.size() == 2 && repacks(tensor)) {
            return weights.upload(repack, tensor, src);
        }
        if (converted.empty() && mapped &&
            file.tensor_offset(name) % ggml_backend_buft_get_alignment(dev.buft()) == 0) {
            ggml_backend_tensor_alloc(mapped, tensor,
                                      static_cast<uint8_t *>(ggml_backend_buffer_get_base(mapped)) +
                                          file.tensor_offset(name));
            return tensor;
        }
        return upload(tensor, src);
    }

    std::vector<float> to_f32(const std::string & name, int64_t n, bool required) {
        const ggml_tensor * meta = find(name, { n }, required);
        if (!meta) {
            return {};
        }
        std::vector<float> values(n);
        if (meta->type == GGML_TYPE_F32) {
            memcpy(values.data(), data(name), n * sizeof(float));
        } else if (ggml_get_type_traits(meta->type)->to_float) {
            ggml_get_type_traits(meta->type)->to_float(data(name), values.data(), n);
        } else {
            throw model_file_error(format("'%s': tensor '%s': type %s cannot be read as numbers", file.path().c_str(),
                                          name.c_str(), ggml_type_name(meta->type)));
        }
        return values;
    }

    // Norms and biases.
    ggml_tensor * vector(const std::string & name, int64_t n, bool required = true) {
        const std::vector<float> values = to_f32(name, n, required);
        if (values.empty()) {
            return nullptr;
        }
        ggml_tensor * tensor = ggml_new_tensor_1d(weights.ctx_.get(), GGML_TYPE_F32, n);
        ggml_set_name(tensor, name.c_str());
        return upload(tensor, values.data());
    }
};

ggml_tensor * head_weights::upload(ggml_backend_buffer_type_t buft, ggml_tensor * tensor, const void * src) {
    const size_t size = ggml_backend_buft_get_alloc_size(buft, tensor);
    buffer_ptr   buffer(ggml_backend_buft_alloc_buffer(buft, size));
    if (!buffer) {
        throw error(format("cannot allocate %zu bytes of %s for tensor '%s'", size, ggml_backend_buft_name(buft),
                           tensor->name));
    }
    ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    ggml_backend_tensor_alloc(buffer.get(), tensor, ggml_backend_buffer_get_base(buffer.get()));
    ggml_backend_tensor_set(tensor, src, 0, ggml_nbytes(tensor));
    buffers_.push_back(std::move(buffer));
    return tensor;
}

static void check_pair(const head_hparams & hparams, const target_tables & tables) {
    const char * path = hparams.path.c_str();
    if (hparams.n_embd_tgt != tables.n_embd) {
        throw incompatible_draft_error(format("'%s': the head reads hidden states of width %d, the target's are %d "
                                              "wide: it was trained for another model",
                                              path, hparams.n_embd_tgt, tables.n_embd));
    }
    for (const int32_t b : hparams.boundaries) {
        if (b > tables.n_layer) {
            throw incompatible_draft_error(format(
                "'%s': the head reads boundary %d, the target has layers 0..%d: it was trained for another model", path,
                b, tables.n_layer));
        }
    }
    if (hparams.has_tok_embd && !has_nearly(hparams.n_vocab, tables.n_vocab)) {
        throw incompatible_draft_error(format("'%s': the head embeds %d tokens, the target's vocabulary has %d", path,
                                              hparams.n_vocab, tables.n_vocab));
    }
    if (hparams.has_output && !hparams.has_d2t && !has_nearly(hparams.n_vocab_dft, tables.n_vocab)) {
        throw incompatible_draft_error(format("'%s': the head predicts %d tokens without a map to the target's %d",
                                              path, hparams.n_vocab_dft, tables.n_vocab));
    }
    if (hparams.mask_token >= tables.n_vocab) {
        throw incompatible_draft_error(format("'%s': the head's mask token is %d, the target's vocabulary has %d", path,
                                              hparams.mask_token, tables.n_vocab));
    }
    if (!hparams.has_tok_embd && !tables.tok_embd) {
        throw incompatible_draft_error(
            format("'%s': the head has no token embedding and the target's cannot be shared", path));
    }
    if (!hparams.has_output) {
        if (!tables.output) {
            throw incompatible_draft_error(
                format("'%s': the head has no lm_head and the target's cannot be shared", path));
        }
        if (hparams.n_embd != tables.n_embd) {
            throw incompatible_draft_error(
                format("'%s': the head is %d wide and has no lm_head of its own, the target's is %d wide", path,
                       hparams.n_embd, tables.n_embd));
        }
        if (hparams.has_d2t && hparams.n_vocab_dft != tables.n_vocab) {
            throw incompatible_draft_error(
                format("'%s': the head maps %d draft tokens but shares the target's lm_head with %d rows", path,
                       hparams.n_vocab_dft, tables.n_vocab));
        }
    }
}

head_weights::head_weights(const gguf_file & file, const head_hparams & hparams, const target_tables & tables,
                           const device & dev, ggml_type type, int32_t n_threads) :
    file_(file.path()), ctx_(make_tensor_context(2 * file.tensors().size() + 8)), fingerprint_(fnv1a_start) {
    check_pair(hparams, tables);

    loader        load(*this, file, dev, type, n_threads);
    const int64_t n_embd = hparams.n_embd;
    const int64_t n_feat = hparams.n_embd_feat();

    if (hparams.use_aux_hidden_state) {
        fc   = load.matrix("fc.weight", { n_feat, n_embd });
        fc_b = load.vector("fc.bias", n_embd, false);
    } else if (hparams.n_embd != hparams.n_embd_tgt) {
        throw model_file_error(format("'%s': a head without fc must be as wide as its target, found %d and %d",
                                      hparams.path.c_str(), hparams.n_embd, hparams.n_embd_tgt));
    }
    if (hparams.norm_before_fc) {
        input_norm = load.vector("enc.output_norm.weight", n_feat);
    }
    if (hparams.fc_norm) {
        std::vector<float> values;
        for (size_t k = 0; k < hparams.boundaries.size(); ++k) {
            const auto slot = load.to_f32(format("fc_norm.%zu.weight", k), hparams.n_embd_tgt, true);
            values.insert(values.end(), slot.begin(), slot.end());
        }
        fc_norm = ggml_new_tensor_2d(ctx_.get(), GGML_TYPE_F32, hparams.n_embd_tgt,
                                     static_cast<int64_t>(hparams.boundaries.size()));
        ggml_set_name(fc_norm, "fc_norm");
        load.upload(fc_norm, values.data());
    }

    for (int32_t il = 0; il < hparams.n_layer; ++il) {
        layers.push_back(load_layer(load, hparams, il));
    }
    if (hparams.is_parallel()) {
        mask_hidden = load.to_f32("mask_hidden", n_feat, true);
    }

    output_norm = load.vector("output_norm.weight", n_embd);
    rope_freqs  = load.vector("rope_freqs.weight", hparams.n_rot / 2, false);
    n_vocab_dft = hparams.n_vocab_dft > 0 ? hparams.n_vocab_dft : tables.n_vocab;

    if (hparams.has_output) {
        output = load.matrix("output.weight", { n_embd, n_vocab_dft });
    } else if (dev.can_read(tables.output)) {
        output = const_cast<ggml_tensor *>(tables.output); // ggml wants it mutable, nothing writes to it
        n_bytes_shared += ggml_nbytes(tables.output);
    } else if (!can_get(tables.output)) {
        throw incompatible_draft_error(format(
            "'%s' has no output matrix of its own, and the target's cannot be copied to %s: the CPU keeps it in a "
            "layout of its own (%s). Run the head on the CPU, or the target where the head is",
            file.path().c_str(), dev.name().c_str(),
            ggml_backend_buft_name(ggml_backend_buffer_get_type(tables.output->buffer))));
    } else {
        std::vector<uint8_t> data(ggml_nbytes(tables.output));
        ggml_backend_tensor_get(tables.output, data.data(), 0, data.size());
        output = load.upload(ggml_dup_tensor(ctx_.get(), tables.output), data.data());
    }
    n_bytes_read += hparams.has_output ? 0 : ggml_nbytes(output);

    if (hparams.has_tok_embd) {
        // rows are read by the host, so the table stays in the mapped file whatever the device
        const ggml_tensor * meta   = load.find("token_embd.weight", { n_embd, hparams.n_vocab }, true);
        ggml_tensor *       tensor = ggml_dup_tensor(ctx_.get(), meta);
        tensor->data               = const_cast<uint8_t *>(load.data("token_embd.weight"));
        tok_embd_                  = tensor;
    } else {
        tok_embd_ = tables.tok_embd;
        n_bytes_shared += ggml_nbytes(tables.tok_embd);
    }
    row_.resize(ggml_row_size(tok_embd_->type, n_embd));

    load_d2t(file, hparams, tables);
    load.check_all_known();
}

head_layer head_weights::load_layer(loader & load, const head_hparams & hparams, int32_t il) {
    const auto name = [il](const char * suffix) {
        return format("blk.%d.%s", il, suffix);
    };
    const int64_t n_embd = hparams.n_embd;
    const int64_t n_in   = il == 0 ? 2 * n_embd : n_embd;
    const int64_t n_lora = hparams.kv_lora_rank;
    head_layer    layer;

    layer.attn_norm = load.vector(name("attn_norm.weight"), n_embd);
    if (il == 0) {
        layer.hidden_norm =
            load.vector(name(hparams.dialect == "fork" ? "hidden_norm.weight" : "attn_norm_2.weight"), n_embd);
    }
    if (hparams.q_lora_rank > 0) {
        layer.wq_a     = load.matrix(name("attn_q_a.weight"), { n_in, hparams.q_lora_rank });
        layer.q_a_norm = load.vector(name("attn_q_a_norm.weight"), hparams.q_lora_rank);
        layer.wq_b     = load.matrix(name("attn_q_b.weight"), { hparams.q_lora_rank, hparams.n_embd_q() });
    } else {
        layer.wq = load.matrix(name("attn_q.weight"), { n_in, hparams.n_embd_q() });
    }
    if (hparams.is_mla()) {
        layer.wkv_a     = load.matrix(name("attn_kv_a_mqa.weight"), { n_in, n_lora + hparams.n_rot });
        layer.kv_a_norm = load.vector(name("attn_kv_a_norm.weight"), n_lora);
        layer.wk_b      = load.matrix(name("attn_k_b.weight"), { hparams.n_embd_nope, n_lora, hparams.n_head });
        layer.wv_b      = load.matrix(name("attn_v_b.weight"), { n_lora, hparams.n_embd_head_v, hparams.n_head });
    } else {
        layer.wk     = load.matrix(name("attn_k.weight"), { n_in, hparams.n_embd_k() });
        layer.wv     = load.matrix(name("attn_v.weight"), { n_in, hparams.n_embd_k() });
        layer.bq     = load.vector(name("attn_q.bias"), hparams.n_embd_q(), false);
        layer.bk     = load.vector(name("attn_k.bias"), hparams.n_embd_k(), false);
        layer.bv     = load.vector(name("attn_v.bias"), hparams.n_embd_k(), false);
        layer.q_norm = load.vector(name("attn_q_norm.weight"), hparams.n_embd_head, false);
        layer.k_norm = load.vector(name("attn_k_norm.weight"), hparams.n_embd_head, false);
    }
    layer.wo = load.matrix(name("attn_output.weight"), { hparams.n_embd_attn(), n_embd });
    layer.bo = load.vector(name("attn_output.bias"), n_embd, false);

    layer.ffn_norm   = load.vector(name("ffn_norm.weight"), n_embd);
    layer.ffn_gate   = load.matrix(name("ffn_gate.weight"), { n_embd, hparams.n_ff });
    layer.ffn_up     = load.matrix(name("ffn_up.weight"), { n_embd, hparams.n_ff });
    layer.ffn_down   = load.matrix(name("ffn_down.weight"), { hparams.n_ff, n_embd });
    layer.ffn_gate_b = load.vector(name("ffn_gate.bias"), hparams.n_ff, false);
    layer.ffn_up_b   = load.vector(name("ffn_up.bias"), hparams.n_ff, false);
    layer.ffn_down_b = load.vector(name("ffn_down.bias"), n_embd, false);
    return layer;
}

void head_weights::load_d2t(const gguf_file & file, const head_hparams & hparams, const target_tables & tables) {
    const ggml_tensor * meta = file.find_tensor("d2t");
    if (!meta) {
        if (n_vocab_dft > tables.n_vocab) { // the target lacks the last ones
            d2t.resize(n_vocab_dft, -1);
            std::iota(d2t.begin(), d2t.begin() + tables.n_vocab, 0);
        }
        return;
    }
    const char * path = hparams.path.c_str();
    if ((meta->type != GGML_TYPE_I64 && meta->type != GGML_TYPE_I32) || ggml_n_dims(meta) != 1) {
        throw model_file_error(format("'%s': tensor 'd2t': expected one dimension of I64 or I32, found %d of %s", path,
                                      ggml_n_dims(meta), ggml_type_name(meta->type)));
    }
    if (ggml_nelements(meta) != n_vocab_dft) {
        throw model_file_error(format("'%s': tensor 'd2t': expected %d draft tokens, found %lld", path, n_vocab_dft,
                                      static_cast<long long>(ggml_nelements(meta))));
    }
    const uint8_t *   data      = static_cast<const uint8_t *>(file_.data()) + file.tensor_offset("d2t");
    const bool        is_offset = hparams.dialect == "fork";
    std::vector<bool> used(tables.n_vocab, false);

    d2t.resize(n_vocab_dft);
    for (int32_t i = 0; i < n_vocab_dft; ++i) {
        int64_t value = 0;
        if (meta->type == GGML_TYPE_I64) {
            memcpy(&value, data + i * sizeof(int64_t), sizeof(int64_t));
        } else {
            int32_t value_i32 = 0;
            memcpy(&value_i32, data + i * sizeof(int32_t), sizeof(int32_t));
            value = value_i32;
        }
        const int64_t id = is_offset ? value + i : value;
        if (id >= tables.n_vocab && id < hparams.n_vocab) {
            d2t[i] = -1;
            continue;
        }
        if (id < 0 || id >= tables.n_vocab) {
            throw incompatible_draft_error(
                format("'%s': tensor 'd2t': draft token %d maps to %lld, the target's vocabulary has %d tokens", path,
                       i, static_cast<long long>(id), tables.n_vocab));
        }
        if (used[id]) {
            throw model_file_error(format("'%s': tensor 'd2t': two draft tokens map to the target's token %lld", path,
                                          static_cast<long long>(id)));
        }
        used[id] = true;
        d2t[i]   = static_cast<llama_token>(id);
    }
    fingerprint_ = fnv1a(fingerprint_, d2t.data(), d2t.size() * sizeof(llama_token));
}

// Can a device look up rows of such a table?
static bool can_get_rows(const device & dev, ggml_type type, int64_t n_embd, int64_t n_rows) {
    const context_ptr ctx   = make_tensor_context(3);
    ggml_tensor *     table = ggml_new_tensor_2d(ctx.get(), type, n_embd, n_rows);
    ggml_tensor *     ids   = ggml_new_tensor_1d(ctx.get(), GGML_TYPE_I32, 1);
    return ggml_backend_supports_op(dev.backend(), ggml_get_rows(ctx.get(), table, ids));
}

void head_weights::load_embd_dft(const device & dev) {
    const int64_t n_embd = tok_embd_->ne[0];
    const bool    as_is  = can_get_rows(dev, tok_embd_->type, n_embd, n_vocab_dft);
    if (as_is && d2t.empty() && dev.can_read(tok_embd_)) {
        embd_dft = const_cast<ggml_tensor *>(tok_embd_);
        return;
    }
    embd_dft = ggml_new_tensor_2d(ctx_.get(), as_is ? tok_embd_->type : GGML_TYPE_F32, n_embd, n_vocab_dft);
    ggml_set_name(embd_dft, "embd_dft");

    // reads blocks of rows, in the order of the target's ids: the table may be on a device that is slow to read from
    std::vector<int32_t> ids(n_vocab_dft);
    std::iota(ids.begin(), ids.end(), 0);
    std::sort(ids.begin(), ids.end(),
              [this](int32_t a, int32_t b) { return row_of(to_target(a)) < row_of(to_target(b)); });

    constexpr int64_t    n_block = 4096;
    const size_t         n_row   = tok_embd_->nb[1];
    std::vector<uint8_t> table(ggml_nbytes(embd_dft)), block;
    int64_t              block_end = 0;
    for (const int32_t id : ids) {
        const int64_t token = row_of(to_target(id));
        if (token >= block_end) {
            const int64_t first = token / n_block * n_block;
            block_end           = std::min(first + n_block, tok_embd_->ne[1]);
            block.resize((block_end - first) * n_row);
            get_raw_rows(first, block_end - first, block.data());
        }
        const uint8_t * src = block.data() + token % n_block * n_row;
        uint8_t *       dst = table.data() + id * embd_dft->nb[1];
        if (as_is) {
            memcpy(dst, src, n_row);
        } else {
            ggml_get_type_traits(tok_embd_->type)->to_float(src, reinterpret_cast<float *>(dst), n_embd);
        }
    }
    upload(dev.buft(), embd_dft, table.data());
    n_bytes_own += table.size();
}

std::vector<const ggml_tensor *> head_weights::matrices() const {
    std::vector<const ggml_tensor *> found;
    for (ggml_tensor * t = ggml_get_first_tensor(ctx_.get()); t; t = ggml_get_next_tensor(ctx_.get(), t)) {
        if (ggml_n_dims(t) > 1 && t != embd_dft) {
            found.push_back(t);
        }
    }
    return found;
}

void head_weights::leave_out(const std::vector<llama_token> & tokens) {
    if (d2t.empty() && !tokens.empty()) {
        d2t.resize(n_vocab_dft);
        std::iota(d2t.begin(), d2t.end(), 0);
    }
    for (llama_token & id : d2t) {
        if (std::binary_search(tokens.begin(), tokens.end(), id)) {
            id = -1;
        }
    }
}

void head_weights::get_raw_rows(int64_t first, int64_t n, uint8_t * dst) const {
    const size_t offset = first * tok_embd_->nb[1];
    const size_t size   = n * tok_embd_->nb[1];
    if (!tok_embd_->buffer || ggml_backend_buffer_is_host(tok_embd_->buffer)) {
        memcpy(dst, static_cast<const uint8_t *>(tok_embd_->data) + offset, size);
    } else {
        ggml_backend_tensor_get(tok_embd_, dst, offset, size);
    }
}

void head_weights::get_embedding(llama_token token, float * dst) const {
    const size_t size   = row_.size();
    const size_t offset = static_cast<size_t>(row_of(token)) * tok_embd_->nb[1];
    const void * src    = row_.data();
    if (!tok_embd_->buffer || ggml_backend_buffer_is_host(tok_embd_->buffer)) {
        src = static_cast<const uint8_t *>(tok_embd_->data) + offset;
    } else {
        ggml_backend_tensor_get(tok_embd_, row_.data(), offset, size);
    }
    if (tok_embd_->type == GGML_TYPE_F32) {
        memcpy(dst, src, size);
    } else {
        ggml_get_type_traits(tok_embd_->type)->to_float(src, dst, tok_embd_->ne[0]);
    }
}

} // namespace eagle3
