#include "draft/cache.h"

#include "error.h"
#include "ggml-alloc.h"

namespace eagle3 {

static void check_type(const char * what, ggml_type type, const head_hparams & hparams) {
    const bool known = type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16 ||
                       type == GGML_TYPE_Q8_0 || type == GGML_TYPE_Q4_0 || type == GGML_TYPE_Q4_1 ||
                       type == GGML_TYPE_Q5_0 || type == GGML_TYPE_Q5_1 || type == GGML_TYPE_IQ4_NL;
    if (!known) {
        throw std::invalid_argument(
            format("%s: expected one of f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, iq4_nl, found ggml type %d", what,
                   type));
    }
    if (hparams.n_embd_head % ggml_blck_size(type) != 0) {
        throw std::invalid_argument(
            format("%s: type %s needs heads whose size is a multiple of %d, the draft's are %d wide", what,
                   ggml_type_name(type), static_cast<int>(ggml_blck_size(type)), hparams.n_embd_head));
    }
}

draft_cache::draft_cache(const head_hparams & hparams, int32_t n_ctx, int32_t n_seq_max, ggml_type type_k,
                         ggml_type type_v, const device & dev) :
    n_ctx_(n_ctx), n_seq_max_(n_seq_max), n_slots_(pad(n_ctx + n_scratch, n_pad)),
    ctx_(make_tensor_context(2 * hparams.n_layer)) {
    check_type("draft_type_k", type_k, hparams);
    check_type("draft_type_v", type_v, hparams);

    const int64_t n_rows = row(n_seq_max, 0);
    for (int32_t il = 0; il < hparams.n_layer; ++il) {
        k_.push_back(ggml_new_tensor_2d(ctx_.get(), type_k, hparams.n_embd_k(), n_rows));
        v_.push_back(ggml_new_tensor_2d(ctx_.get(), type_v, hparams.n_embd_k(), n_rows));
    }
    buffer_.reset(ggml_backend_alloc_ctx_tensors_from_buft(ctx_.get(), dev.buft()));
    if (!buffer_) {
        throw error(format("cannot allocate the draft's K/V cache (%lld slots) on %s", static_cast<long long>(n_rows),
                           dev.name().c_str()));
    }
    // masked slots still take part in products with zero: they must not hold NaN
    ggml_backend_buffer_clear(buffer_.get(), 0);
}

size_t draft_cache::state_size(int32_t n) const {
    size_t size = 0;
    for (size_t il = 0; il < k_.size(); ++il) {
        size += n * (k_[il]->nb[1] + v_[il]->nb[1]);
    }
    return size;
}

void draft_cache::state_get(llama_seq_id seq_id, int32_t first, int32_t n, uint8_t * dst) const {
    for (size_t il = 0; il < k_.size(); ++il) {
        for (const ggml_tensor * t : { k_[il], v_[il] }) {
            ggml_backend_tensor_get(t, dst, row(seq_id, first) * t->nb[1], n * t->nb[1]);
            dst += n * t->nb[1];
        }
    }
}

void draft_cache::state_set(llama_seq_id seq_id, int32_t first, int32_t n, const uint8_t * src) {
    for (size_t il = 0; il < k_.size(); ++il) {
        for (ggml_tensor * t : { k_[il], v_[il] }) {
            ggml_backend_tensor_set(t, src, row(seq_id, first) * t->nb[1], n * t->nb[1]);
            src += n * t->nb[1];
        }
    }
}

size_t draft_cache::n_bytes() const {
    return ggml_backend_buffer_get_size(buffer_.get());
}

} // namespace eagle3
