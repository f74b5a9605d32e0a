#include "target/graph_reader.h"

#include "error.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace eagle3 {

// The layer in a tensor's name "<prefix>-<layer>", -1 if it has another name. A view's name has more after it.
static int32_t layer_in_name(const char * name, const char * prefix) {
    if (!prefix || name[0] != prefix[0]) {
        return -1;
    }
    const size_t n = strlen(prefix);
    if (strncmp(name, prefix, n) != 0 || name[n] != '-') {
        return -1;
    }
    char *     end = nullptr;
    const long il  = strtol(name + n + 1, &end, 10);
    return *end == '\0' ? static_cast<int32_t>(il) : -1;
}

graph_reader::graph_reader(std::vector<int32_t> boundaries, int32_t n_layer, int32_t n_embd, const std::string & arch) :
    bounds(std::move(boundaries)), n_layer(n_layer), n_embd(n_embd), arch(arch), graph(find_arch_graph(arch)),
    slot_of(n_layer + 2, -1), n_rows(bounds.size(), 0) {
    for (size_t i = 0; i < bounds.size(); ++i) {
        slot_of[bounds[i]] = i;
    }
}

std::string graph_reader::slot_name(size_t i_slot) const {
    const int32_t b = bounds[i_slot];
    return b == 0 ? "embd" : b == n_layer + 1 ? "result_norm" : format("%s-%d", graph.layer_out, b - 1);
}

void graph_reader::begin(const llama_batch & batch, const ubatch_order & order, float * dst) {
    this->dst   = dst;
    this->order = &order;
    n_tokens    = batch.n_tokens;
    token       = order.is_batch_order ? nullptr : batch.token;
    has_embd    = batch.embd != nullptr;
    n_done      = 0;
    i_ubatch    = 0;
    started     = false;
    lacks_input = false;
    problem.clear();
    begin_ubatch();
}

void graph_reader::end() {
    if (started) {
        end_ubatch();
    }
    dst = nullptr;
    if (problem.empty() && n_done != n_tokens) {
        problem = format("%d of %d rows were seen", n_done, n_tokens);
    }
    if (!problem.empty()) {
        throw error(format("cannot read hidden states of the target (architecture %s) from its graph: %s", arch.c_str(),
                           problem.c_str()));
    }
}

void graph_reader::begin_ubatch() {
    std::fill(n_rows.begin(), n_rows.end(), 0);
    b_last = -1;
    i_slot = -1;
}

void graph_reader::end_ubatch() {
    const int32_t n_ubatch = i_ubatch < order->sizes.size() ? order->sizes[i_ubatch] : 0;
    for (size_t i = 0; i < bounds.size(); ++i) {
        if (bounds[i] == 0 && has_embd && n_rows[i] == 0) {
            lacks_input = true;
        } else if (n_rows[i] != n_ubatch && problem.empty()) {
            problem = format("%d of %d rows of boundary %d (tensor %s) were seen", n_rows[i], n_ubatch, bounds[i],
                             slot_name(i).c_str());
        }
    }
    n_done += n_ubatch;
    i_ubatch++;
    started = false;
    begin_ubatch();
}

// Called for every node of every graph, so it must be fast. No exception may pass through the scheduler.
bool graph_reader::on_eval(ggml_tensor * t, bool ask, void * user_data) {
    auto * self = static_cast<graph_reader *>(user_data);
    if (self->dst == nullptr) {
        return !ask; // this decode is not the tap's
    }
    if (ask) {
        return self->ask(t);
    }
    try {
        self->read(t);
    } catch (const std::exception & e) {
        if (self->problem.empty()) {
            self->problem = e.what();
        }
    }
    return true; // false would end this part of the graph
}

// The boundary of a tensor between two layers; -1 if it is none.
int32_t graph_reader::boundary_of(const char * name) const {
    if (graph.last_out && strcmp(name, graph.last_out) == 0) {
        return n_layer;
    }
    const int32_t il_out = std::max(layer_in_name(name, graph.layer_out), layer_in_name(name, graph.deepstack_out));
    const int32_t b      = il_out >= 0 ? il_out + 1 : layer_in_name(name, graph.layer_in);
    return b <= n_layer ? b : -1;
}

bool graph_reader::ask(const ggml_tensor * t) {
    const char * name = t->name;
    i_slot            = -1;
    is_embd           = false;

    const int32_t b = boundary_of(name);
    if (b >= 1) {
        // the graph begins again with the first layer. If a layer has two tensors of this name, the last one counts
        if (started && (b < b_last || (b == b_last && n_layer == 1))) {
            end_ubatch();
        }
        started = true;
        b_last  = b;
        i_slot  = slot_of[b];
        return i_slot >= 0;
    }
    if (b == 0 || ((slot_of[0] >= 0 || token) && is_embd_name(name))) {
        if (started && b_last >= 0) {
            end_ubatch();
        }
        started = true;
        i_slot  = slot_of[0];
        is_embd = true;
        return i_slot >= 0 || token;
    }
    if (slot_of[n_layer + 1] >= 0 && name[0] == 'r' && strcmp(name, "result_norm") == 0) {
        started = true;
        i_slot  = slot_of[n_layer + 1];
        return true;
    }
    return false;
}

void graph_reader::read(const ggml_tensor * t) {
    if (is_embd && token) {
        check_tokens(t);
    }
    if (i_slot >= 0) {
        copy_rows(t, i_slot);
    }
}

void graph_reader::copy_rows(const ggml_tensor * t, size_t i_slot) {
    if (t->type != GGML_TYPE_F32 || t->ne[0] != n_embd || t->ne[2] != 1 || t->ne[3] != 1) {
        throw error(format("tensor %s is %s [%d, %d, %d, %d], expected f32 [%d, n_tokens]", t->name,
                           ggml_type_name(t->type), (int) t->ne[0], (int) t->ne[1], (int) t->ne[2], (int) t->ne[3],
                           n_embd));
    }
    if (n_done + t->ne[1] > n_tokens) {
        throw error(
            format("tensor %s has too many rows: %d + %d, expected %d", t->name, n_done, (int) t->ne[1], n_tokens));
    }
    const size_t n_row_floats = bounds.size() * n_embd;
    float *      rows         = dst + n_done * n_row_floats + i_slot * n_embd;
    if (ggml_backend_buffer_is_host(t->view_src ? t->view_src->buffer : t->buffer) || !ggml_is_contiguous(t)) {
        ggml_backend_tensor_get_2d(t, rows, 0, n_embd * sizeof(float), t->ne[1], t->nb[1],
                                   n_row_floats * sizeof(float));
    } else {
        // one copy: on most devices fetching row after row is slow
        device_rows.resize(ggml_nelements(t));
        ggml_backend_tensor_get(t, device_rows.data(), 0, ggml_nbytes(t));
        for (int64_t i = 0; i < t->ne[1]; ++i) {
            std::copy_n(device_rows.data() + i * n_embd, n_embd, rows + i * n_row_floats);
        }
    }
    n_rows[i_slot] = t->ne[1];
}

// Checks that the tokens of this ubatch, which the embedding lookup has, are those that ubatch_order predicts.
void graph_reader::check_tokens(const ggml_tensor * t) {
    const ggml_tensor * ids = t->op == GGML_OP_GET_ROWS ? t->src[1] : nullptr;
    if (!ids || ids->type != GGML_TYPE_I32) {
        return;
    }
    std::vector<int32_t> found(ggml_nelements(ids));
    ggml_backend_tensor_get(ids, found.data(), 0, ggml_nbytes(ids));
    for (size_t i = 0; i < found.size(); ++i) {
        if (n_done + i >= order->idxs.size() || found[i] != token[order->idxs[n_done + i]]) {
            throw error("the tokens of a batch with several sequences were not evaluated in the expected order");
        }
    }
}

} // namespace eagle3
