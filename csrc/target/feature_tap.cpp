#include "target/feature_tap.h"

#include "error.h"
#include "llama_ext.h"

#include <algorithm>
#include <cstring>
#include <set>

namespace eagle3 {

feature_tap::feature_tap(std::vector<int32_t> boundaries, int32_t n_layer, int32_t n_embd, const std::string & arch,
                         const std::string & kind) :
    arch(arch), bounds(std::move(boundaries)), n_layer(n_layer), n_embd_row(n_embd), graph(find_arch_graph(arch)) {
    if (n_layer <= 0 || n_embd <= 0) {
        throw std::invalid_argument(format("n_layer and n_embd must be positive, not %d and %d", n_layer, n_embd));
    }
    if (bounds.empty()) {
        throw std::invalid_argument("no boundaries to read hidden states at");
    }
    const bool has_streams = graph.nextn > 1 && bounds == std::vector<int32_t>{ n_layer + graph.nextn };
    for (int32_t b : bounds) {
        if (b < 0 || (b > n_layer + 1 && !has_streams)) {
            throw std::invalid_argument(
                format("boundary %d is out of range: a target with %d layers has 0 to %d, and %d after the final norm",
                       b, n_layer, n_layer, n_layer + 1));
        }
    }
    if (std::set<int32_t>(bounds.begin(), bounds.end()).size() != bounds.size()) {
        throw std::invalid_argument("a boundary is named twice");
    }
    if (kind != "auto" && kind != "native" && kind != "callback") {
        throw std::invalid_argument("kind must be auto, native or callback, not " + kind);
    }

    const auto unpublished =
        std::find_if(bounds.begin(), bounds.end(), [&](int32_t b) { return !graph.publishes(b, n_layer); });
    if (kind == "native" && unpublished != bounds.end()) {
        throw error(format("llama.cpp does not publish boundary %d of architecture %s: use the callback tap",
                           *unpublished, arch.c_str()));
    }
    if (kind == "callback" || unpublished != bounds.end()) {
        for (int32_t b : bounds) {
            if (!graph.readable(b, n_layer)) {
                throw error(format("boundary %d of architecture %s cannot be read", b, arch.c_str()));
            }
        }
        reader = std::make_unique<graph_reader>(bounds, n_layer, n_embd, arch);
    }
}

bool feature_tap::needs_all_outputs() const {
    return !native() && *std::max_element(bounds.begin(), bounds.end()) >= n_layer;
}

void feature_tap::attach(llama_context * ctx) {
    const llama_model * model       = llama_get_model(ctx);
    const bool          has_streams = bounds.front() > n_layer + 1;
    const int32_t       n_embd      = has_streams ? llama_model_n_embd_out(model) : llama_model_n_embd(model);
    if (llama_model_n_layer(model) != n_layer || n_embd != n_embd_row) {
        throw std::invalid_argument(
            format("the tap was made for %d layers of width %d, the context's model has %d of %d", n_layer, n_embd_row,
                   llama_model_n_layer(model), n_embd));
    }
    char arch_model[128] = "";
    llama_model_meta_val_str(model, "general.architecture", arch_model, sizeof(arch_model));
    if (arch != arch_model) {
        throw std::invalid_argument(
            format("the tap was made for architecture %s, the context's model is %s", arch.c_str(), arch_model));
    }

    this->ctx = ctx;
    split     = ubatch_split_of(ctx);
    if (native()) {
        for (int32_t b : bounds) {
            if (b < n_layer || (b == n_layer && graph.layer_inp_last)) {
                llama_set_embeddings_layer_inp(ctx, b, true);
            } else {
                llama_set_embeddings_nextn(ctx, true, /*masked =*/false);
            }
        }
    }
}

void feature_tap::begin(const llama_batch & batch) {
    if (!ctx) {
        throw error("the tap is not attached to a context");
    }
    n_tokens = batch.n_tokens;
    embd     = batch.embd;
    cur      = state::running;
    i_decode++;
    reserve(n_tokens * n_row_floats());
    if (reader) {
        order_ubatches(batch, split, order);
        reader->begin(batch, order, buf.get());
    }
}

void feature_tap::end() {
    cur = state::failed;
    llama_synchronize(ctx);
    if (reader) {
        reader->end();
        restore_order();
        if (reader->input_is_embd()) {
            copy_input();
        }
    } else {
        copy_native();
    }
    cur = state::ready;
}

void feature_tap::abort() {
    cur = state::failed;
    if (reader) {
        reader->abort();
    }
}

void feature_tap::select(const std::vector<int32_t> & idxs) {
    const size_t n_floats = n_row_floats();
    for (size_t i = 0; i < idxs.size(); ++i) {
        memmove(buf.get() + i * n_floats, buf.get() + idxs[i] * n_floats, n_floats * sizeof(float));
    }
    n_tokens = static_cast<int32_t>(idxs.size());
}

const float * feature_tap::rows() const {
    switch (cur) {
        case state::none: throw error("no hidden states: nothing was decoded yet");
        case state::running: throw busy_error("the hidden states are being computed by another thread");
        case state::failed: throw error("no hidden states: the last decode failed");
        case state::ready: break;
    }
    return buf.get();
}

std::shared_ptr<const float[]> feature_tap::share() const {
    rows();
    return buf;
}

void feature_tap::check_decode(uint64_t i) const {
    if (i != i_decode) {
        throw error(format("hidden states of decode %llu were asked for, but the last one was %llu",
                           (unsigned long long) i, (unsigned long long) i_decode));
    }
}

void feature_tap::reserve(size_t n_floats) {
    // rows that a caller still holds must not change
    if (n_floats > n_buf || buf.use_count() > 1) {
        buf.reset(new float[n_floats]);
        n_buf = n_floats;
    }
}

// Copies rows that came as embeddings, which are the first layer's input as they are.
void feature_tap::copy_input() {
    const int64_t n_inp = llama_model_n_embd_inp(llama_get_model(ctx));
    for (size_t k = 0; k < bounds.size(); ++k) {
        for (int32_t i = 0; bounds[k] == 0 && i < n_tokens; ++i) {
            memcpy(buf.get() + i * n_row_floats() + k * n_embd_row, embd + i * n_inp, n_embd_row * sizeof(float));
        }
    }
}

void feature_tap::copy_native() {
    const size_t n_embd = n_embd_row;
    for (size_t k = 0; k < bounds.size(); ++k) {
        const int32_t b         = bounds[k];
        const bool    layer_inp = b < n_layer || (b == n_layer && graph.layer_inp_last);
        const float * src       = layer_inp ? llama_get_embeddings_layer_inp(ctx, b) : llama_get_embeddings_nextn(ctx);
        if (!src) {
            throw error(format("llama.cpp gave no hidden states at boundary %d", b));
        }
        float * dst = buf.get() + k * n_embd;
        for (int32_t i = 0; i < n_tokens; ++i) {
            memcpy(dst + i * n_row_floats(), src + i * n_embd, n_embd * sizeof(float));
        }
    }
}

// Reorders rows from the order of evaluation to that of the batch.
void feature_tap::restore_order() {
    if (order.is_batch_order) {
        return;
    }
    const size_t n_floats = n_row_floats();
    tmp.assign(buf.get(), buf.get() + n_tokens * n_floats);
    for (int32_t i = 0; i < n_tokens; ++i) {
        memcpy(buf.get() + order.idxs[i] * n_floats, tmp.data() + i * n_floats, n_floats * sizeof(float));
    }
}

} // namespace eagle3
