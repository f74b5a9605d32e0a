#include "draft/drafter.h"

#include "error.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

namespace eagle3 {

namespace {

// adds the time of a scope to a counter
struct time_scope {
    explicit time_scope(int64_t & t_us) : t_us(t_us), t_start(ggml_time_us()) {}
    ~time_scope() { t_us += ggml_time_us() - t_start; }

    int64_t & t_us;
    int64_t   t_start;
};

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

int32_t pad(int32_t n, int32_t to) {
    return (n + to - 1) / to * to;
}

} // namespace

drafter::drafter(const std::string & path, const llama_model * model_tgt, int32_t n_ctx,
                 const drafter_params & params) :
    hparams_(with_boundaries(read_head(gguf_file(path)), params.boundaries)), tables_(model_tgt),
    dev_(params.dev, params.n_gpu_layers, tables_.output, params.n_threads),
    weights_(gguf_file(path), hparams_, tables_, dev_), cache_(hparams_, n_ctx, params.type_k, params.type_v, dev_),
    boundaries_(hparams_.use_aux_hidden_state ? hparams_.boundaries : std::vector<int32_t>{ tables_.n_layer + 1 }),
    n_batch_(std::max(params.n_batch, n_catch_up_max)), state_ctx_(make_tensor_context(1)) {
    state_ = ggml_new_tensor_1d(state_ctx_.get(), GGML_TYPE_F32, hparams_.n_embd);
    state_buffer_.reset(ggml_backend_alloc_ctx_tensors_from_buft(state_ctx_.get(), dev_.buft()));
    if (!state_buffer_) {
        throw error(format("cannot allocate the draft's state on %s", dev_.name().c_str()));
    }
    // build the graphs of a round once, so that a device that cannot run the head says so now
    get_graph(graph_kind::kv_only, 1, draft_cache::n_pad);
    get_graph(graph_kind::catch_up, 1, draft_cache::n_pad);
    get_graph(graph_kind::step, 1, draft_cache::n_pad);
}

draft_graph & drafter::get_graph(graph_kind kind, int32_t n_rows, int32_t n_kv) {
    for (auto & cached : graphs_) {
        if (cached.kind == kind && cached.graph.n_rows == n_rows && cached.graph.n_kv == n_kv) {
            return cached.graph;
        }
    }
    const size_t n_before = graphs_.size();
    if (kind == graph_kind::kv_only) {
        // prompt graphs are large: keep one
        graphs_.erase(std::remove_if(graphs_.begin(), graphs_.end(),
                                     [](const cached_graph & c) { return c.kind == graph_kind::kv_only; }),
                      graphs_.end());
    }
    if (graphs_.size() >= n_graphs_max) {
        graphs_.pop_back();
    }
    if (graphs_.size() < n_before) {
        dev_.on_free();
    }
    last_ = nullptr;
    graphs_.push_front({ kind, build_draft_graph(kind, n_rows, n_kv, hparams_, weights_, cache_, state_, dev_) });
    return graphs_.front().graph;
}

// row i of the graph is position pos + i; next[i] is the token at position pos + i + 1
void drafter::set_inputs(draft_graph & graph, const float * feat, const llama_token * next, int32_t pos) {
    const int32_t n_rows = graph.n_rows;
    const size_t  n_embd = hparams_.n_embd;

    embd_.resize(n_rows * n_embd);
    for (int32_t i = 0; i < n_rows; ++i) {
        weights_.get_embedding(next[i], embd_.data() + i * n_embd);
    }
    pos_.resize(n_rows);
    slot_.resize(n_rows);
    std::iota(pos_.begin(), pos_.end(), pos);
    std::iota(slot_.begin(), slot_.end(), pos);

    ggml_backend_tensor_set(graph.embd, embd_.data(), 0, ggml_nbytes(graph.embd));
    ggml_backend_tensor_set(graph.pos, pos_.data(), 0, ggml_nbytes(graph.pos));
    ggml_backend_tensor_set(graph.slot, slot_.data(), 0, ggml_nbytes(graph.slot));
    if (graph.feat) {
        ggml_backend_tensor_set(graph.feat, feat, 0, ggml_nbytes(graph.feat));
    }
    if (graph.mask) {
        const ggml_fp16_t zero   = ggml_fp32_to_fp16(0.0f);
        const ggml_fp16_t minus  = ggml_fp32_to_fp16(-INFINITY);
        const int32_t     n_mask = static_cast<int32_t>(graph.mask->ne[1]);
        mask_.assign(static_cast<size_t>(n_mask) * graph.n_kv, minus);
        for (int32_t i = 0; i < n_mask; ++i) {
            const int32_t p     = pos + n_rows - n_mask + i;
            const int32_t first = hparams_.sliding_window > 0 ? std::max(0, p - hparams_.sliding_window + 1) : 0;
            std::fill_n(mask_.begin() + static_cast<size_t>(i) * graph.n_kv + first, p - first + 1, zero);
        }
        ggml_backend_tensor_set(graph.mask, mask_.data(), 0, ggml_nbytes(graph.mask));
    }
}

void drafter::compute(draft_graph & graph) {
    time_scope        t(stats.t_graph_us);
    const ggml_status status = ggml_backend_graph_compute(dev_.backend(), graph.gf);
    if (status != GGML_STATUS_SUCCESS) {
        throw error(format("the draft's graph failed on %s: %s", dev_.name().c_str(), ggml_status_to_string(status)));
    }
}

// write all waiting rows but the last, whose next token is not known yet
void drafter::flush() {
    const size_t n_feat = hparams_.n_embd_feat();
    while (tokens_.size() > 1) {
        const int32_t n       = std::min<int32_t>(static_cast<int32_t>(tokens_.size()) - 1, n_batch_);
        const bool    attends = hparams_.n_layer > 1;
        draft_graph & graph =
            get_graph(graph_kind::kv_only, n, attends ? pad(pos_first_ + n, draft_cache::n_pad) : draft_cache::n_pad);
        set_inputs(graph, rows_.data(), tokens_.data() + 1, pos_first_);
        compute(graph);
        rows_.erase(rows_.begin(), rows_.begin() + static_cast<std::ptrdiff_t>(n * n_feat));
        tokens_.erase(tokens_.begin(), tokens_.begin() + n);
        pos_first_ += n;
    }
}

void drafter::process(const float * rows, const llama_token * tokens, int32_t n_tokens, int32_t n_past) {
    time_scope t(stats.t_process_us);
    if (n_tokens <= 0) {
        return;
    }
    if (n_past != this->n_past()) {
        throw error(format("the draft expects rows from position %d on, got position %d", this->n_past(), n_past));
    }
    if (n_past + n_tokens > n_ctx()) {
        throw context_full_error(
            format("the draft's context has %d slots, position %d does not fit", n_ctx(), n_past + n_tokens - 1));
    }
    for (int32_t i = 0; i < n_tokens; ++i) {
        if (tokens[i] < 0 || tokens[i] >= tables_.n_vocab) {
            throw std::invalid_argument(format("token %d: expected an id in 0..%d", tokens[i], tables_.n_vocab - 1));
        }
    }
    if (seeded_) {
        if (*seeded_ == tokens[0]) {
            rows_.clear();
            tokens_.clear();
            pos_first_ = n_past;
        }
        seeded_.reset();
    }
    rows_.insert(rows_.end(), rows, rows + static_cast<size_t>(n_tokens) * hparams_.n_embd_feat());
    tokens_.insert(tokens_.end(), tokens, tokens + n_tokens);
    if (tokens_.size() > n_catch_up_max) {
        flush();
    }
}

// the token that a graph drafted, or -1 if its probability is below p_min
llama_token drafter::drafted(const draft_graph & graph, float p_min) {
    last_ = &graph;
    stats.n_steps++;

    int32_t id = 0;
    ggml_backend_tensor_get(graph.id, &id, 0, sizeof(id));
    if (id < 0 || id >= weights_.n_vocab_dft) {
        return -1; // every logit was NaN
    }
    if (p_min > 0.0f) {
        // llama.cpp's drafter samples from the ten best logits
        logits_.resize(weights_.n_vocab_dft);
        ggml_backend_tensor_get(graph.logits, logits_.data(), 0, ggml_nbytes(graph.logits));
        const auto n_best = std::min<std::ptrdiff_t>(10, static_cast<std::ptrdiff_t>(logits_.size()));
        std::partial_sort(logits_.begin(), logits_.begin() + n_best, logits_.end(), std::greater<float>());
        float sum = 0.0f;
        for (std::ptrdiff_t i = 0; i < n_best; ++i) {
            sum += expf(logits_[i] - logits_[0]);
        }
        if (1.0f / sum < p_min) {
            return -1;
        }
    }
    return weights_.to_target(id);
}

std::vector<llama_token> drafter::propose(llama_token id_last, int32_t n_max, float p_min) {
    time_scope t(stats.t_propose_us);
    if (id_last < 0 || id_last >= tables_.n_vocab) {
        throw std::invalid_argument(format("id_last %d: expected an id in 0..%d", id_last, tables_.n_vocab - 1));
    }
    std::vector<llama_token> result;
    const int32_t            pos = n_past() - 1; // slot of the first draft; the i-th one is written at pos + i
    n_max                        = std::min(n_max, n_ctx() - pos);
    if (tokens_.empty() || n_max <= 0) {
        return result;
    }
    stats.n_propose++;

    std::vector<llama_token> next(tokens_.begin() + 1, tokens_.end());
    next.push_back(id_last);
    draft_graph & graph =
        get_graph(graph_kind::catch_up, static_cast<int32_t>(next.size()), pad(pos + 1, draft_cache::n_pad));
    set_inputs(graph, rows_.data(), next.data(), pos_first_);
    compute(graph);

    rows_.erase(rows_.begin(), rows_.end() - hparams_.n_embd_feat());
    tokens_.erase(tokens_.begin(), tokens_.end() - 1);
    pos_first_ = pos;
    seeded_    = id_last;

    llama_token id = drafted(graph, p_min);
    while (id >= 0) {
        result.push_back(id);
        const int32_t n = static_cast<int32_t>(result.size());
        if (n >= n_max) {
            break;
        }
        draft_graph & step = get_graph(graph_kind::step, 1, pad(pos + n + 1, draft_cache::n_pad));
        set_inputs(step, nullptr, &id, pos + n);
        compute(step);
        id = drafted(step, p_min);
    }
    return result;
}

int32_t drafter::truncate(int32_t n_past) {
    n_past                    = std::max(n_past, 0);
    // the last slot in the cache holds the token at pos_first: with no row waiting there, that token goes too
    const bool last_slot_goes = tokens_.empty() && n_past == pos_first_ && n_past > 0;
    if (n_past >= this->n_past() && !last_slot_goes) {
        return this->n_past();
    }
    if (n_past > pos_first_) {
        tokens_.resize(n_past - pos_first_);
        rows_.resize(tokens_.size() * hparams_.n_embd_feat());
        return n_past;
    }
    rows_.clear();
    tokens_.clear();
    seeded_.reset();
    pos_first_ = std::max(n_past - 1, 0);
    return pos_first_;
}

namespace {

constexpr uint32_t state_magic = 0x33454c45; // "ELE3"

struct state_header {
    uint32_t magic;
    int32_t  pos_first;
    int32_t  n_tokens;
    int32_t  seeded; // -1 = not
    uint64_t fingerprint;
    uint64_t size; // of the whole state
    int32_t  type_k, type_v;
};

} // namespace

std::vector<uint8_t> drafter::state_get() const {
    // a seeded row is in the cache too
    const int32_t n_slots = pos_first_ + (seeded_ ? 1 : 0);
    const size_t  n_cache = cache_.state_size(n_slots);
    const size_t  size =
        sizeof(state_header) + rows_.size() * sizeof(float) + tokens_.size() * sizeof(llama_token) + n_cache;

    const state_header header = { state_magic,
                                  pos_first_,
                                  static_cast<int32_t>(tokens_.size()),
                                  seeded_.value_or(-1),
                                  weights_.fingerprint(),
                                  size,
                                  cache_.k(0)->type,
                                  cache_.v(0)->type };

    std::vector<uint8_t> state(size);
    uint8_t *            dst = state.data();
    memcpy(dst, &header, sizeof(header));
    dst += sizeof(header);
    // not memcpy: without rows there is nothing to copy from
    dst = std::copy_n(reinterpret_cast<const uint8_t *>(rows_.data()), rows_.size() * sizeof(float), dst);
    dst = std::copy_n(reinterpret_cast<const uint8_t *>(tokens_.data()), tokens_.size() * sizeof(llama_token), dst);
    cache_.state_get(n_slots, dst);
    return state;
}

void drafter::state_set(const std::vector<uint8_t> & state) {
    state_header header = {};
    if (state.size() < sizeof(header)) {
        throw std::invalid_argument("not a state of an EAGLE-3 draft: too short");
    }
    memcpy(&header, state.data(), sizeof(header));
    if (header.magic != state_magic || header.size != state.size()) {
        throw std::invalid_argument("not a state of an EAGLE-3 draft, or truncated");
    }
    if (header.fingerprint != weights_.fingerprint() || header.type_k != cache_.k(0)->type ||
        header.type_v != cache_.v(0)->type) {
        throw incompatible_draft_error(
            format("the saved state belongs to another head or cache type than '%s'", hparams_.path.c_str()));
    }
    const int32_t n_slots = header.pos_first + (header.seeded >= 0 ? 1 : 0);
    const size_t  n_rows  = header.n_tokens;
    const size_t  n_feat  = hparams_.n_embd_feat();
    if (header.pos_first < 0 || header.n_tokens < 0 || header.pos_first > n_ctx() ||
        header.n_tokens > n_ctx() - header.pos_first ||
        state.size() !=
            sizeof(header) + n_rows * (n_feat * sizeof(float) + sizeof(llama_token)) + cache_.state_size(n_slots)) {
        throw std::invalid_argument(format("the saved state has %d + %d positions, the draft's context holds %d",
                                           header.pos_first, header.n_tokens, n_ctx()));
    }

    const uint8_t *          src = state.data() + sizeof(header);
    std::vector<llama_token> tokens(n_rows);
    std::copy_n(src + n_rows * n_feat * sizeof(float), n_rows * sizeof(llama_token),
                reinterpret_cast<uint8_t *>(tokens.data()));
    const auto is_foreign = [this](llama_token id) {
        return id < 0 || id >= tables_.n_vocab;
    };
    if (std::any_of(tokens.begin(), tokens.end(), is_foreign) || header.seeded < -1 ||
        (header.seeded >= 0 && (n_rows != 1 || is_foreign(header.seeded)))) {
        throw std::invalid_argument("the saved state of the draft is damaged: its tokens are not in the vocabulary");
    }

    rows_.resize(n_rows * n_feat);
    std::copy_n(src, rows_.size() * sizeof(float), reinterpret_cast<uint8_t *>(rows_.data()));
    src += rows_.size() * sizeof(float) + n_rows * sizeof(llama_token);
    tokens_ = std::move(tokens);
    cache_.state_set(n_slots, src);
    pos_first_ = header.pos_first;
    seeded_    = header.seeded >= 0 ? std::optional<llama_token>(header.seeded) : std::nullopt;
}

std::vector<float> drafter::logits() const {
    std::vector<float> result;
    if (last_) {
        result.resize(weights_.n_vocab_dft);
        ggml_backend_tensor_get(last_->logits, result.data(), 0, ggml_nbytes(last_->logits));
    }
    return result;
}

std::vector<float> drafter::hidden_state() const {
    std::vector<float> result(hparams_.n_embd);
    ggml_backend_tensor_get(state_, result.data(), 0, ggml_nbytes(state_));
    return result;
}

} // namespace eagle3
