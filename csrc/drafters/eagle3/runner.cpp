#include "drafters/eagle3/runner.h"

#include "error.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace eagle3 {

void draft_pass::clear(graph_kind kind, int32_t n_top, int32_t n_steps) {
    this->kind    = kind;
    this->n_top   = n_top;
    this->n_steps = n_steps;
    rows.clear();
    ancestors.clear();
    n_ancestors.clear();
    features.clear();
}

draft_pass::row & draft_pass::add_row(llama_seq_id seq_id, llama_token token, int32_t pos, int32_t first) {
    row r;
    r.seq_id = seq_id;
    r.token  = token;
    r.pos = r.slot = pos;
    r.first        = first;
    r.end          = pos + 1;
    rows.push_back(r);
    return rows.back();
}

static ggml_tensor * make_state(ggml_context * ctx, int32_t n_embd, int32_t n_state) {
    return ggml_new_tensor_2d(ctx, GGML_TYPE_F32, GGML_PAD(n_embd, n_aligned / sizeof(float)), n_state);
}

draft_runner::draft_runner(const head_hparams & hparams, const head_weights & weights, const draft_cache & cache,
                           const device & dev, const std::vector<rope_positions> & positions, int32_t n_state) :
    dev_(dev), positions_(positions), state_ctx_(make_tensor_context(1)),
    model_{ hparams, weights, cache, dev, make_state(state_ctx_.get(), hparams.n_embd, n_state) },
    galloc_(ggml_gallocr_new(dev.buft())) {
    state_buffer_.reset(ggml_backend_alloc_ctx_tensors_from_buft(state_ctx_.get(), dev_.buft()));
    if (!state_buffer_) {
        throw error(format("cannot allocate the draft's state on %s", dev_.name().c_str()));
    }
}

draft_graph & draft_runner::get_graph(const graph_shape & shape) {
    if (cache_version_ != model_.cache.version()) {
        last_ = nullptr;
        graphs_.clear();
        cache_version_ = model_.cache.version();
    }
    const auto it =
        std::find_if(graphs_.begin(), graphs_.end(), [&shape](const auto & graph) { return graph.shape == shape; });
    if (it != graphs_.end()) {
        graphs_.splice(graphs_.begin(), graphs_, it);
        return graphs_.front();
    }
    if (graphs_.size() >= n_graphs_max) {
        graphs_.pop_back();
    }
    last_             = nullptr;
    draft_graph graph = build_draft_graph(shape, model_);
    alloc(graph);
    graphs_.push_front(std::move(graph));
    return graphs_.front();
}

void draft_runner::alloc(draft_graph & graph) {
    const size_t n_bytes = ggml_gallocr_get_buffer_size(galloc_.get(), 0);
    if (!ggml_gallocr_reserve(galloc_.get(), graph.gf) || !ggml_gallocr_alloc_graph(galloc_.get(), graph.gf)) {
        graphs_.clear();
        throw error(format("cannot allocate the draft's compute buffer on %s", dev_.name().c_str()));
    }
    if (ggml_gallocr_get_buffer_size(galloc_.get(), 0) != n_bytes && !graphs_.empty()) {
        // the buffer has grown, and the other graphs use the old one, which was freed
        graphs_.clear();
        dev_.on_free();
    }
}

void draft_runner::set(ggml_tensor * tensor, const void * data, size_t n_bytes, size_t offset) {
    ggml_backend_tensor_set_async(dev_.backend(), tensor, data, offset, n_bytes);
}

// Appends the mask's rows for `rows` and the steps from step_first on. n_kv: of all rows of the pass.
static void fill_mask(std::vector<ggml_fp16_t> & mask, const std::vector<int32_t> & n_kv, const draft_pass & pass,
                      const std::vector<int32_t> & rows, int32_t window, int32_t step_first, int32_t n_steps) {
    const ggml_fp16_t zero  = ggml_fp32_to_fp16(0.0f);
    const ggml_fp16_t minus = ggml_fp32_to_fp16(-INFINITY);

    size_t n = 0;
    for (const int32_t i : rows) {
        n += n_kv[i];
    }
    mask.assign(n * n_steps, minus);
    auto dst = mask.begin();
    for (int32_t step = step_first; step < step_first + n_steps; ++step) {
        const int32_t * ancestors = pass.ancestors.data();
        int32_t         i_next    = 0; // row whose ancestors come next
        for (const int32_t i : rows) {
            const draft_pass::row & row   = pass.rows[i];
            const int32_t           first = window > 0 ? std::max(row.first, row.pos + step - window + 1) : row.first;
            if (first < row.end + step) {
                std::fill(dst + first, dst + row.end + step, zero);
            }
            if (!pass.n_ancestors.empty()) {
                for (; i_next < i; ++i_next) {
                    ancestors += pass.n_ancestors[i_next];
                }
                for (int32_t j = 0; j < pass.n_ancestors[i]; ++j) {
                    dst[ancestors[j]] = zero;
                }
            }
            dst += n_kv[i];
        }
    }
}

void draft_runner::add_positions(std::vector<int32_t> & pos, const draft_pass & pass, const std::vector<int32_t> & rows,
                                 int32_t step) const {
    if (model_.hparams.n_pos() == 1) {
        for (const int32_t i : rows) {
            pos.push_back(pass.rows[i].pos + step);
        }
        return;
    }
    for (int32_t section = 0; section < model_.hparams.n_pos(); ++section) {
        for (const int32_t i : rows) {
            pos.push_back(positions_[pass.rows[i].seq_id].at(pass.rows[i].pos + step, section));
        }
    }
}

void draft_runner::set_inputs(const draft_graph & graph, const draft_pass & pass) {
    const int32_t n_rows  = graph.shape.n_rows;
    const int32_t n_out   = graph.shape.n_out;
    const int32_t n_more  = graph.step_pos ? n_out * (graph.shape.n_steps - 1) : 0;
    const int32_t window  = model_.hparams.sliding_window;
    const size_t  n_embd  = model_.hparams.n_embd;
    const auto    set_all = [this](ggml_tensor * tensor, const auto & values) {
        if (tensor) {
            set(tensor, values.data(), ggml_nbytes(tensor));
        }
    };

    embd_.resize(n_rows * n_embd);
    out_rows_.resize(n_rows);
    std::iota(out_rows_.begin(), out_rows_.end(), 0);
    pos_.clear();
    add_positions(pos_, pass, out_rows_, 0);
    row_.resize(n_rows);
    state_in_.resize(n_rows);
    for (int32_t i = 0; i < n_rows; ++i) {
        const draft_pass::row & row = pass.rows[i];
        model_.weights.get_embedding(row.token, embd_.data() + i * n_embd);
        row_[i]      = model_.cache.row(row.seq_id, row.slot);
        state_in_[i] = row.state_in;
    }
    set_all(graph.embd, embd_);
    set_all(graph.pos, pos_);
    set_all(graph.row, row_);
    set_all(graph.state_in, state_in_);

    size_t offset = 0;
    for (const auto & segment : pass.features) {
        const size_t n_bytes = segment.n_rows * graph.feat->nb[1];
        set(graph.feat, segment.data, n_bytes, offset);
        offset += n_bytes;
    }
    if (graph.mask) {
        fill_mask(mask_, n_kv_, pass, out_rows_, window, 0, 1);
        set_all(graph.mask, mask_);
    }
    if (!graph.mask_out) {
        return;
    }

    out_rows_.clear();
    for (int32_t i = 0; i < n_rows; ++i) {
        if (pass.rows[i].is_out) {
            out_rows_.push_back(i);
        }
    }
    fill_mask(mask_out_, n_kv_, pass, out_rows_, window, 0, 1);
    set_all(graph.mask_out, mask_out_);
    set_all(graph.out, out_rows_);
    if (graph.pos_out) {
        pos_out_.clear();
        add_positions(pos_out_, pass, out_rows_, 0);
        set_all(graph.pos_out, pos_out_);
    }
    if (graph.state_out) {
        state_out_.clear();
        for (const int32_t i : out_rows_) {
            state_out_.push_back(pass.rows[i].state_out);
        }
        set_all(graph.state_out, state_out_);
    }
    if (n_more > 0) {
        step_pos_.clear();
        step_row_.clear();
        for (int32_t step = 1; step < graph.shape.n_steps; ++step) {
            add_positions(step_pos_, pass, out_rows_, step);
            step_pos_.resize(step * graph.step_pos->ne[0]);
            for (const int32_t i : out_rows_) {
                step_row_.push_back(row_[i] + step);
            }
            step_row_.resize(step * graph.step_row->ne[0]);
        }
        fill_mask(step_mask_, n_kv_, pass, out_rows_, window, 1, graph.shape.n_steps - 1);
        set_all(graph.step_pos, step_pos_);
        set_all(graph.step_row, step_row_);
        set_all(graph.step_mask, step_mask_);
    }
}

void draft_runner::find_streams(const draft_pass & pass) {
    const draft_cache & cache       = model_.cache;
    const bool          from_target = pass.kind == graph_kind::kv_only || pass.kind == graph_kind::catch_up;

    shape_.streams.clear();
    n_kv_.clear();
    if (pass.kind == graph_kind::kv_only && model_.hparams.n_layer == 1) {
        return; // nothing attends
    }
    // sequences whose extents have one length see the same number of slots, so that one attention can serve them
    n_kv_of_.clear();
    const auto n_kv = [&](const draft_pass::row & row) -> int32_t & {
        const int32_t size = cache.n_slots(row.seq_id);
        for (auto & [other, n] : n_kv_of_) {
            if (other == size) {
                return n;
            }
        }
        return n_kv_of_.emplace_back(size, 0).second;
    };
    for (const auto & row : pass.rows) {
        int32_t &     n      = n_kv(row);
        const int32_t n_more = model_.hparams.is_parallel() ? 1 : pass.n_steps; // its rows are there already
        n                    = std::max(n, pad(row.slot + n_more, draft_cache::n_pad));
    }
    for (const auto & row : pass.rows) {
        const int64_t base = cache.row(row.seq_id, 0);
        n_kv_.push_back(n_kv(row));
        if (shape_.streams.empty() || shape_.streams.back().base != base) {
            shape_.streams.push_back({ base, n_kv_.back(), 0, 0 });
        }
        // with one layer it does not matter which sequence the rows that only get K/V belong to
        shape_.streams.back().n_rows += !from_target || model_.hparams.n_layer > 1;
        shape_.streams.back().n_out += row.is_out;
    }
}

void draft_runner::compute(const draft_pass & pass) {
    shape_.kind    = pass.kind;
    shape_.n_top   = pass.n_top;
    shape_.n_steps = pass.n_steps;
    shape_.n_rows  = static_cast<int32_t>(pass.rows.size());
    shape_.n_out   = 0;
    for (const auto & row : pass.rows) {
        shape_.n_out += row.is_out;
    }
    find_streams(pass);

    draft_graph & graph = get_graph(shape_);
    set_inputs(graph, pass);

    const int64_t     t_start = ggml_time_us();
    const ggml_status status  = ggml_backend_graph_compute(dev_.backend(), graph.gf);
    t_graph_us += ggml_time_us() - t_start;
    if (status != GGML_STATUS_SUCCESS) {
        throw error(format("the draft's graph failed on %s: %s", dev_.name().c_str(), ggml_status_to_string(status)));
    }
    last_ = &graph;
    if (pass.kind != graph_kind::kv_only) {
        state_last_ = pass.state_last;
    }
    read_outputs(graph);
}

void draft_runner::read_outputs(const draft_graph & graph) {
    if (graph.outputs.empty()) {
        return;
    }
    const size_t n_steps = graph.outputs.size();
    const size_t n_out   = graph.shape.n_out;
    const size_t n_vocab = model_.weights.n_vocab_dft;
    const auto   get     = [this, n_steps](const ggml_tensor * tensor, auto & values, size_t n, size_t i_step) {
        values.resize(n * n_steps);
        ggml_backend_tensor_get_async(dev_.backend(), tensor, values.data() + i_step * n, 0, ggml_nbytes(tensor));
    };
    for (size_t i = 0; i < n_steps; ++i) {
        const draft_output & out = graph.outputs[i];
        get(out.id, ids_, n_out, i);
        if (out.top) {
            if (graph.shape.n_top > 1) { // one candidate is the best one; fetching another tensor would take time
                get(out.top, top_, n_out * graph.shape.n_top, i);
            }
            get(out.top_p, top_p_, n_out * graph.shape.n_top, i);
        } else if (out.probs && !dev_.is_host()) {
            get(out.probs, probs_, n_out * n_vocab, i);
        }
    }
    ggml_backend_synchronize(dev_.backend());
}

int32_t draft_runner::best(int32_t i_out, int32_t i_step) const {
    const int32_t id = ids_[index(i_out, i_step)];
    return id >= 0 && id < model_.weights.n_vocab_dft ? id : -1;
}

const std::vector<draft_candidate> & draft_runner::candidates(int32_t i_out, int32_t i_step) {
    const size_t         i       = index(i_out, i_step);
    const size_t         n_out   = last_->shape.n_out;
    const draft_output & out     = last_->outputs[i / n_out];
    const int32_t        n_vocab = model_.weights.n_vocab_dft;
    const int32_t        n_top   = last_->shape.n_top;
    const auto           better  = [](const draft_candidate & a, const draft_candidate & b) {
        return a.p > b.p || (a.p == b.p && a.id < b.id);
    };

    found_.clear();
    if (out.top) {
        for (int32_t j = 0; j < n_top; ++j) {
            const draft_candidate c = { n_top > 1 ? top_[i * n_top + j] : ids_[i], top_p_[i * n_top + j] };
            if (std::isfinite(c.p) && c.id >= 0 && c.id < n_vocab) {
                found_.push_back(c);
            }
        }
        std::sort(found_.begin(), found_.end(), better);
    } else {
        // a heap of the n_top best so far, the worst of them on top
        const float * probs = dev_.is_host() ? static_cast<const float *>(out.probs->data) + i % n_out * n_vocab
                                             : probs_.data() + i * n_vocab;
        for (int32_t id = 0; id < n_vocab; ++id) {
            if (static_cast<int32_t>(found_.size()) == n_top) {
                if (!(probs[id] > found_.front().p)) {
                    continue;
                }
                std::pop_heap(found_.begin(), found_.end(), better);
                found_.pop_back();
            } else if (!std::isfinite(probs[id])) {
                continue;
            }
            found_.push_back({ id, probs[id] });
            std::push_heap(found_.begin(), found_.end(), better);
        }
        std::sort_heap(found_.begin(), found_.end(), better);
    }

    // of several best tokens the first must be the one that the chain followed
    const int32_t id = best(i_out, i_step);
    auto it = std::find_if(found_.begin(), found_.end(), [id](const draft_candidate & c) { return c.id == id; });
    if (it != found_.end()) {
        std::rotate(found_.begin(), it, it + 1);
    } else if (!found_.empty() && id >= 0) {
        std::rotate(found_.begin(), found_.end() - 1, found_.end());
        found_.front().id = id;
    }
    return found_;
}

int32_t draft_runner::n_graph_nodes() const {
    int32_t n = 0;
    for (int i = 0; last_ && i < ggml_graph_n_nodes(last_->gf); ++i) {
        n += !is_view(ggml_graph_node(last_->gf, i));
    }
    return n;
}

std::vector<float> draft_runner::last_logits() const {
    std::vector<float> result;
    if (last_ && !last_->outputs.empty()) {
        result.resize(model_.weights.n_vocab_dft);
        const size_t n_bytes = result.size() * sizeof(float);
        const size_t i       = index(0, last_->shape.n_steps - 1);
        const size_t n_out   = last_->shape.n_out;
        ggml_backend_tensor_get(last_->outputs[i / n_out].logits, result.data(), i % n_out * n_bytes, n_bytes);
    }
    return result;
}

std::vector<float> draft_runner::last_state() const {
    std::vector<float> result(model_.hparams.n_embd);
    const size_t       n_bytes = result.size() * sizeof(float);
    ggml_backend_tensor_get(model_.state, result.data(), state_last_ * model_.state->nb[1], n_bytes);
    return result;
}

} // namespace eagle3
