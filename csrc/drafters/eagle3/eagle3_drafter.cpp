#include "drafters/eagle3/eagle3_drafter.h"

#include "drafter/time_scope.h"
#include "error.h"

#include <algorithm>
#include <utility>

namespace eagle3 {

namespace {

head_hparams with_boundaries(head_hparams hparams, const std::vector<int32_t> & boundaries) {
    if (boundaries.empty()) {
        return hparams;
    }
    if (!hparams.use_aux_hidden_state) {
        throw incompatible_draft_error(format(
            "'%s': the head reads the target's final state only, boundaries cannot be chosen", hparams.path.c_str()));
    }
    if (boundaries.size() != hparams.boundaries.size()) {
        throw incompatible_draft_error(format("'%s': the head reads %zu boundaries, %zu were given",
                                              hparams.path.c_str(), hparams.boundaries.size(), boundaries.size()));
    }
    hparams.boundaries = boundaries;
    return hparams;
}

// The steps of a chain in one graph: an accelerator takes long to launch graphs, and on a CPU stopping early saves
// more.
int32_t n_unroll_of(int32_t n_unroll, const head_hparams & hparams, const device & dev) {
    if (hparams.is_parallel()) {
        return draft_cache::n_scratch;
    }
    if (n_unroll < 0) {
        n_unroll = ggml_backend_dev_type(dev.dev()) == GGML_BACKEND_DEVICE_TYPE_CPU ? 1 : draft_cache::n_scratch;
    }
    return std::min(n_unroll, draft_cache::n_scratch);
}

} // namespace

eagle3_drafter::eagle3_drafter(const std::string & path, const llama_model * model_tgt, int32_t n_ctx,
                               const eagle3_params & params) :
    hparams_(with_boundaries(read_head(gguf_file(path)), params.boundaries)), tables_(model_tgt),
    dev_(params.dev, params.n_gpu_layers, tables_.output, params.n_threads),
    weights_(gguf_file(path), hparams_, tables_, dev_, params.type, params.n_threads), matrices_(weights_.matrices()),
    memory_(hparams_, weights_, tables_.n_vocab, n_ctx, params.n_seq_max, params.type_k, params.type_v, dev_,
            [this] { builder_.end(); }),
    runner_(hparams_, weights_, memory_.cache(), dev_, memory_.positions(),
            params.n_seq_max * (1 + draft_cache::n_scratch)),
    writer_(memory_, runner_, std::max(params.n_batch, draft_limits::n_catch_up_max)),
    builder_(hparams_, weights_, memory_, writer_, runner_, n_unroll_of(params.n_unroll, hparams_, dev_), stats),
    boundaries_(hparams_.use_aux_hidden_state ? hparams_.boundaries : std::vector<int32_t>{ tables_.n_layer + 1 }) {
    if (n_unroll() > 1 && !is_parallel()) {
        weights_.load_embd_dft(dev_);
    }
    // builds the graphs of a draft once: if the device cannot run the head, this throws
    graph_shape shape;
    shape.n_rows = 1;
    shape.kind   = graph_kind::kv_only;
    if (hparams_.n_layer > 1) {
        shape.streams = { { 0, draft_cache::n_pad, 1, 1 } };
    }
    runner_.check(shape);
    shape.n_out   = 1;
    shape.n_top   = 1;
    shape.streams = { { 0, draft_cache::n_pad, 1, 1 } };
    if (is_parallel()) {
        shape.kind   = graph_kind::catch_up;
        shape.n_rows = shape.n_out = shape.n_steps = 2;
        shape.streams                              = { { 0, draft_cache::n_pad, 2, 2 } };
        runner_.check(shape);
        return;
    }
    shape.kind = graph_kind::expand;
    runner_.check(shape);
    shape.kind    = graph_kind::catch_up;
    shape.n_steps = std::min(n_unroll(), 2);
    runner_.check(shape);
}

void eagle3_drafter::process(const float * rows, const llama_token * tokens, int32_t n_tokens, int32_t n_past,
                             llama_seq_id seq_id, const int32_t * row_ids, bool may_wait) {
    time_scope t(stats.t_process_us);
    memory_.sequences().check_process(tokens, n_tokens, n_past, seq_id);
    if (n_tokens <= 0) {
        return;
    }
    builder_.end();
    memory_.request(seq_id, n_past + n_tokens);
    memory_.provide();
    memory_.sequences().append(rows, tokens, n_tokens, seq_id, row_ids, may_wait, writer_.n_batch(),
                               [this](llama_seq_id id) { writer_.flush(id); });
}

void eagle3_drafter::add_image(int32_t first, int32_t n_pos, const std::vector<int32_t> & pos, llama_seq_id seq_id) {
    memory_.add_image(first, n_pos, pos, seq_id);
}

int32_t eagle3_drafter::truncate(int32_t n_past, llama_seq_id seq_id, bool same_next) {
    return memory_.truncate(n_past, seq_id, same_next);
}

int32_t eagle3_drafter::copy(llama_seq_id src, llama_seq_id dst, int32_t n_past, bool same_next) {
    return memory_.copy(src, dst, n_past, same_next);
}

void eagle3_drafter::restart(int32_t n_past, llama_seq_id seq_id) {
    memory_.restart(n_past, seq_id);
}

void eagle3_drafter::state_set(const std::vector<uint8_t> & state, llama_seq_id seq_id) {
    memory_.state_set(state, seq_id);
}

void eagle3_drafter::set_noise(std::shared_ptr<const gumbel_noise> noise, llama_seq_id seq_id) {
    memory_.sequences().check(seq_id);
    builder_.set_noise(std::move(noise), seq_id);
}

void eagle3_drafter::set_rules(std::shared_ptr<grammar_lookahead> rules, llama_seq_id seq_id) {
    memory_.sequences().check(seq_id);
    builder_.set_rules(std::move(rules), seq_id);
}

void eagle3_drafter::begin(const std::vector<llama_seq_id> & seq_ids, const std::vector<llama_token> & ids_last,
                           int32_t top_k, int32_t n_steps) {
    time_scope t(stats.t_propose_us);
    builder_.begin(seq_ids, ids_last, top_k, n_steps);
}

void eagle3_drafter::expand(const std::vector<int32_t> & nodes, int32_t top_k) {
    time_scope t(stats.t_propose_us);
    builder_.expand(nodes, top_k);
}

} // namespace eagle3
