#include "draft/narrow.h"
#include "draft/tree.h"
#include "module.h"
#include "nogil.h"
#include "py_device.h"
#include "py_draft.h"
#include "py_drafter.h"
#include "target/feature_tap.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

namespace eagle3::python {

namespace {

using tokens_t  = std::vector<llama_token>;
using seq_ids_t = std::vector<llama_seq_id>;
using rows_t    = py::array_t<float, py::array::c_style | py::array::forcecast>;

std::unique_ptr<py_drafter> make_drafter(const std::string & path, uintptr_t model_tgt, int32_t n_ctx,
                                         int32_t n_seq_max, int32_t n_unroll,
                                         const std::optional<std::vector<int32_t>> & boundaries,
                                         std::optional<py_device> device, int32_t n_gpu_layers, std::optional<int> type,
                                         std::optional<int> type_k, std::optional<int> type_v, int32_t n_threads,
                                         int32_t n_batch) {
    if (model_tgt == 0 || n_ctx <= 0 || n_seq_max <= 0 || n_threads <= 0 || n_batch <= 0) {
        throw std::invalid_argument(
            "expected the address of a loaded model and positive n_ctx, n_seq_max, n_threads and n_batch");
    }
    if (n_unroll == 0 || n_unroll < -1) {
        throw std::invalid_argument(format("n_unroll: expected -1 or a positive number of steps, found %d", n_unroll));
    }
    if (n_ctx > INT32_MAX / 2 / n_seq_max) {
        throw std::invalid_argument(format("n_ctx %d for %d sequences is more than can be numbered", n_ctx, n_seq_max));
    }
    const auto to_type = [](std::optional<int> type, ggml_type other) {
        const int value = type.value_or(other);
        if (value < 0 || value >= GGML_TYPE_COUNT) {
            throw std::invalid_argument(format("expected a ggml type, found %d", value));
        }
        return static_cast<ggml_type>(value);
    };
    drafter_params params;
    params.n_seq_max    = n_seq_max;
    params.n_unroll     = n_unroll;
    params.boundaries   = boundaries.value_or(std::vector<int32_t>());
    params.dev          = device ? device->dev : nullptr;
    params.n_gpu_layers = n_gpu_layers;
    params.type         = to_type(type, GGML_TYPE_F32);
    params.type_k       = to_type(type_k, GGML_TYPE_F16);
    params.type_v       = to_type(type_v, GGML_TYPE_F16);
    params.n_threads    = n_threads;
    params.n_batch      = n_batch;
    if (!can_convert_to(params.type)) {
        throw std::invalid_argument(format("type: matrices can be converted to %s, found %s",
                                           convertible_types().c_str(), ggml_type_name(params.type)));
    }
    return std::make_unique<py_drafter>(path, reinterpret_cast<const llama_model *>(model_tgt), n_ctx, params);
}

void check_tap(const drafter & drafter, const feature_tap & tap) {
    if (static_cast<int32_t>(tap.n_row_floats()) != drafter.head().n_embd_feat()) {
        throw incompatible_draft_error(format("'%s': the head reads rows of %d values, the tap gives %zu",
                                              drafter.head().path.c_str(), drafter.head().n_embd_feat(),
                                              static_cast<size_t>(tap.n_row_floats())));
    }
}

// rows: where they stand in the tap's last decode; they are not copied
void check_rows(const feature_tap & tap, const tokens_t & tokens, const std::vector<int32_t> & rows) {
    if (rows.size() != tokens.size()) {
        throw std::invalid_argument(
            format("expected one row per token, found %zu rows for %zu tokens", rows.size(), tokens.size()));
    }
    for (const int32_t row : rows) {
        if (row < 0 || row >= tap.n_rows()) {
            throw std::invalid_argument(format("row %d: the last decode had %d rows", row, tap.n_rows()));
        }
    }
}

void process_tap(py_drafter & self, const feature_tap & tap, const tokens_t & tokens, int32_t n_past,
                 llama_seq_id seq_id, const std::optional<std::vector<int32_t>> & rows, bool may_wait) {
    const busy_flag::scope scope(self.busy);
    const auto             n_tokens = static_cast<int32_t>(tokens.size());
    if (rows) {
        check_rows(tap, tokens, *rows);
    } else if (n_tokens > tap.n_rows()) {
        throw std::invalid_argument(
            format("expected one row per token, found %d rows for %d tokens", tap.n_rows(), n_tokens));
    }
    check_tap(self.impl(), tap);
    self.impl().process(tap.rows(), tokens.data(), n_tokens, n_past, seq_id, rows ? rows->data() : nullptr, may_wait);
}

// of one sequence: its id, n_past, tokens, rows, may_wait
using tap_part = std::tuple<llama_seq_id, int32_t, tokens_t, std::vector<int32_t>, bool>;

void process_batch(py_drafter & self, const feature_tap & tap, const std::vector<tap_part> & parts) {
    const busy_flag::scope scope(self.busy);
    drafter &              drafter = self.impl();
    check_tap(drafter, tap);
    for (const auto & [seq_id, n_past, tokens, rows, may_wait] : parts) {
        check_rows(tap, tokens, rows);
        if (drafter.n_past(seq_id) < n_past) {
            drafter.restart(n_past, seq_id);
        }
        const int32_t n      = static_cast<int32_t>(tokens.size());
        const int32_t n_seen = std::min(n, drafter.n_past(seq_id) - n_past);
        drafter.process(tap.rows(), tokens.data() + n_seen, n - n_seen, n_past + n_seen, seq_id, rows.data() + n_seen,
                        may_wait);
    }
}

void process_rows(py_drafter & self, const rows_t & rows, const tokens_t & tokens, int32_t n_past, llama_seq_id seq_id,
                  bool may_wait) {
    if (rows.ndim() < 2 || rows.shape(0) != static_cast<py::ssize_t>(tokens.size()) ||
        rows.size() != rows.shape(0) * self.impl().head().n_embd_feat()) {
        throw std::invalid_argument(
            format("expected rows of shape (%zu, %d)", tokens.size(), self.impl().head().n_embd_feat()));
    }
    const float *          data = rows.data();
    const nogil            release;
    const busy_flag::scope scope(self.busy);
    self.impl().process(data, tokens.data(), static_cast<int32_t>(tokens.size()), n_past, seq_id, nullptr, may_wait);
}

tokens_t propose(py_drafter & self, llama_token id_last, int32_t n_max, float p_min, llama_seq_id seq_id) {
    const busy_flag::scope scope(self.busy);
    return self.impl().propose(id_last, n_max, p_min, seq_id);
}

std::vector<tokens_t> propose_batch(py_drafter & self, const seq_ids_t & seq_ids, const tokens_t & ids_last,
                                    const std::vector<int32_t> & n_max, float p_min) {
    const busy_flag::scope scope(self.busy);
    return self.impl().propose_batch(seq_ids, ids_last, n_max, p_min);
}

py::object propose_tree(py_drafter & self, llama_token id_last, int32_t depth, int32_t top_k, int32_t n_tokens,
                        llama_seq_id seq_id) {
    draft_tree tree;
    {
        const nogil            release;
        const busy_flag::scope scope(self.busy);
        tree = propose_tree(self.impl(), id_last, depth, top_k, n_tokens, seq_id);
    }
    return to_draft(tree.tokens, tree.parents, tree.probs);
}

py::list nodes(py_drafter & self) {
    const busy_flag::scope scope(self.busy);
    py::list               result;
    for (const draft_node & node : self.impl().nodes()) {
        result.append(py::make_tuple(node.parent, node.token, node.p, node.depth, node.seq_id));
    }
    return result;
}

py::array_t<float> to_array(const std::vector<float> & values) {
    return py::array_t<float>(static_cast<py::ssize_t>(values.size()), values.data());
}

} // namespace

void register_drafter(py::module_ & m) {
    const auto without_gil = py::call_guard<nogil>();

    py::class_<py_drafter>(
        m, "Drafter", "An EAGLE-3 head with its K/V cache: takes target rows in, drafts tokens for several sequences.")
        .def(
            py::init(&make_drafter), py::arg("path"), py::arg("model_tgt"), py::arg("n_ctx"), py::kw_only(),
            py::arg("n_seq_max") = 1, py::arg("n_unroll") = -1, py::arg("boundaries") = py::none(),
            py::arg("device") = py::none(), py::arg("n_gpu_layers") = -1, py::arg("type") = py::none(),
            py::arg("type_k") = py::none(), py::arg("type_v") = py::none(), py::arg("n_threads") = 1,
            py::arg("n_batch") = 512, without_gil,
            "path: GGUF head. model_tgt: address of the loaded target, which must outlive the drafter. n_ctx: "
            "positions of each of the n_seq_max sequences.\n"
            "n_unroll: steps of a chain in one graph, -1 = 1 on the CPU and all on an accelerator; parallel heads take "
            "all of them anyway. boundaries: "
            "instead of the head's own.\n"
            "device: where to run. Without it a device of this machine, by n_gpu_layers: 0 = CPU, > 0 = the first "
            "accelerator, < 0 = where the target's lm_head is. type: ggml type to which wider matrices are converted; "
            "None = "
            "as they are. type_k, type_v: ggml types of the cache.\n"
            "Raises ModelFileError, IncompatibleDraftError.")
        .def(
            "use_cpu_kernels",
            [](py_drafter & self, const kernels::row_limits & n_rows_max) {
                const busy_flag::scope scope(self.busy);
                self.impl().use_cpu_kernels(n_rows_max);
            },
            py::arg("n_rows_max"), without_gil,
            "Have the CPU multiply the head's own weights by these kernels, [name]: rows of an operation, at most.")
        .def_property_readonly(
            "cpu_kernels", [](const py_drafter & self) { return self.impl().cpu_kernels(); },
            "[name of a kernel]: own weights that it computes.")
        .def_property_readonly(
            "matrices",
            [](const py_drafter & self) {
                std::vector<uintptr_t> addresses;
                for (const ggml_tensor * weight : self.impl().weights().matrices()) {
                    addresses.push_back(reinterpret_cast<uintptr_t>(weight));
                }
                return addresses;
            },
            "Addresses of the ggml tensors that the head multiplies by, but for those of the target.")
        .def("process", &process_tap, py::arg("tap"), py::arg("tokens"), py::arg("n_past"), py::arg("seq_id") = 0,
             py::arg("rows") = py::none(), py::arg("may_wait") = false, without_gil,
             "Take in rows of the tap's last decode, one per token: those of the tokens at positions n_past, "
             "n_past + 1, ... of a sequence. rows: where they stand in the batch, by default at its beginning. "
             "may_wait: nobody is going to draft soon, so that a prompt's K/V is not made before that.")
        .def("process_batch", &process_batch, py::arg("tap"), py::arg("parts"), without_gil,
             "The same for several sequences, each (seq_id, n_past, tokens, rows, may_wait). Of one that has taken in "
             "some of these rows already, the rest; one that lacks rows before them goes on without those (`restart`).")
        .def("process_rows", &process_rows, py::arg("rows"), py::arg("tokens"), py::arg("n_past"),
             py::arg("seq_id") = 0, py::arg("may_wait") = false,
             "The same from an array, float32 of shape (n_tokens, n_boundaries * n_embd_tgt).")
        .def(
            "guess_next_text",
            [](py_drafter & self) {
                const busy_flag::scope scope(self.busy);
                self.impl().guess_next_text();
            },
            "Guess some tokens of what comes in long pieces, until these guesses are taken.")
        .def(
            "take_guesses",
            [](py_drafter & self) {
                const busy_flag::scope                             scope(self.busy);
                std::vector<std::tuple<llama_seq_id, float, bool>> guesses;
                for (const draft_guess & g : self.impl().take_guesses()) {
                    guesses.emplace_back(g.seq_id, g.p, g.is_right);
                }
                return guesses;
            },
            "What the head would have said of the text that came in, a few tokens of it: (seq_id, p, is_right), p its "
            "probability of its best token there.")
        .def(
            "set_noise",
            [](py_drafter & self, std::shared_ptr<gumbel_noise> noise, llama_seq_id seq_id) {
                const busy_flag::scope scope(self.busy);
                self.impl().set_noise(std::move(noise), seq_id);
            },
            py::arg("noise"), py::arg("seq_id") = 0,
            "What the sequence's next tokens will be drawn with; None: nobody knows, or they are greedy.")
        .def("propose", &propose, py::arg("id_last"), py::arg("n_max"), py::arg("p_min") = 0.0f, py::arg("seq_id") = 0,
             without_gil,
             "Up to n_max target tokens that may follow id_last, the token at position n_past. Ends before a token "
             "less likely than p_min.")
        .def("propose_batch", &propose_batch, py::arg("seq_ids"), py::arg("ids_last"), py::arg("n_max"),
             py::arg("p_min") = 0.0f, without_gil,
             "The same for different sequences in any order, with one graph per step for all of them. n_max: one per "
             "sequence.")
        .def("propose_tree", &propose_tree, py::arg("id_last"), py::arg("depth"), py::arg("top_k"), py::arg("n_tokens"),
             py::arg("seq_id") = 0,
             "A Draft of the n_tokens most probable nodes of a dynamic tree as in EAGLE-2: `depth` levels, on each the "
             "top_k best nodes get top_k children.")
        .def(
            "begin",
            [](py_drafter & self, const seq_ids_t & seq_ids, const tokens_t & ids_last, int32_t top_k,
               int32_t n_steps) {
                const busy_flag::scope scope(self.busy);
                self.impl().begin(seq_ids, ids_last, top_k, n_steps);
            },
            py::arg("seq_ids"), py::arg("ids_last"), py::arg("top_k"), py::arg("n_steps") = 1, without_gil,
            "Start drafting node by node: the top_k most probable tokens behind each id_last. With n_steps > 1 the "
            "best one is followed further, in the same graph. A parallel head computes n_steps positions and appends "
            "the "
            "first level.")
        .def(
            "expand",
            [](py_drafter & self, const std::vector<int32_t> & nodes, int32_t top_k) {
                const busy_flag::scope scope(self.busy);
                self.impl().expand(nodes, top_k);
            },
            py::arg("nodes"), py::arg("top_k"), without_gil,
            "Append the top_k most probable tokens behind each of these nodes, in one graph.")
        .def_property_readonly("nodes", &nodes,
                               "of the round that begin() started: (parent, token, p, depth, seq_id); parent is an "
                               "index, -1 = it follows id_last")
        .def(
            "truncate",
            [](py_drafter & self, int32_t n_past, llama_seq_id seq_id, bool same_next) {
                const busy_flag::scope scope(self.busy);
                return self.impl().truncate(n_past, seq_id, same_next);
            },
            py::arg("n_past"), py::arg("seq_id") = 0, py::arg("same_next") = false, without_gil,
            "Forget positions from n_past on. Returns the position from which rows must be processed again.\n"
            "same_next: the token at n_past will be the one that was there, so that the row before it is not needed "
            "again.")
        .def(
            "copy",
            [](py_drafter & self, llama_seq_id src, llama_seq_id dst, int32_t n_past, bool same_next) {
                const busy_flag::scope scope(self.busy);
                return self.impl().copy(src, dst, n_past, same_next);
            },
            py::arg("src"), py::arg("dst"), py::arg("n_past"), py::arg("same_next") = false, without_gil,
            "Make positions before n_past of one sequence those of another one too, which forgets its own. Returns the "
            "position from which rows of dst must be processed, as truncate(n_past, same_next) would for src, which "
            "stays as it is.")
        .def(
            "restart",
            [](py_drafter & self, int32_t n_past, llama_seq_id seq_id) {
                const busy_flag::scope scope(self.busy);
                self.impl().restart(n_past, seq_id);
            },
            py::arg("n_past"), py::arg("seq_id") = 0, without_gil,
            "Forget everything. The next rows come from n_past on; what lies before is never attended to.")
        .def(
            "add_image",
            [](py_drafter & self, int32_t first,
               const py::array_t<int32_t, py::array::c_style | py::array::forcecast> & pos, int32_t n_pos,
               llama_seq_id seq_id) {
                const busy_flag::scope scope(self.busy);
                self.impl().add_image(first, n_pos, { pos.data(), pos.data() + pos.size() }, seq_id);
            },
            py::arg("first"), py::arg("pos"), py::arg("n_pos"), py::arg("seq_id") = 0,
            "Rows of an image come next, from position `first` on: their positions, int32 (4, n), and how many what "
            "comes "
            "behind counts on. For heads with sections (n_pos_per_row 4).")
        .def_property_readonly(
            "n_pos_per_row", [](const py_drafter & self) { return self.impl().head().n_pos(); },
            "positions of a row: 4 for a head with sections (M-RoPE), else 1")
        .def(
            "reset",
            [](py_drafter & self, std::optional<llama_seq_id> seq_id) {
                const busy_flag::scope scope(self.busy);
                const llama_seq_id     first = seq_id.value_or(0);
                const llama_seq_id     last  = seq_id.value_or(self.impl().n_seq_max() - 1);
                for (llama_seq_id i = first; i <= last; ++i) {
                    self.impl().restart(0, i);
                }
            },
            py::arg("seq_id") = py::none(), without_gil, "Forget a sequence, or all.")
        .def("close", &py_drafter::close, "Free the head: every later call raises.")
        .def(
            "state_get",
            [](py_drafter & self, llama_seq_id seq_id) {
                std::vector<uint8_t> state;
                {
                    const nogil            release;
                    const busy_flag::scope scope(self.busy);
                    state = self.impl().state_get(seq_id);
                }
                return py::bytes(reinterpret_cast<const char *>(state.data()), state.size());
            },
            py::arg("seq_id") = 0)
        .def(
            "state_set",
            [](py_drafter & self, const py::bytes & bytes, llama_seq_id seq_id) {
                const auto             view = static_cast<std::string_view>(bytes);
                const nogil            release;
                const busy_flag::scope scope(self.busy);
                self.impl().state_set({ view.begin(), view.end() }, seq_id);
            },
            py::arg("state"), py::arg("seq_id") = 0)
        .def_property_readonly("head", [](const py_drafter & self) { return self.impl().head(); })
        .def_property_readonly("boundaries", [](const py_drafter & self) { return self.impl().boundaries(); })
        .def_property_readonly("device", [](const py_drafter & self) { return self.impl().dev().name(); })
        .def_property_readonly("n_embd", [](const py_drafter & self) { return self.impl().head().n_embd; })
        .def_property_readonly("n_ctx", [](const py_drafter & self) { return self.impl().n_ctx(); })
        .def_property_readonly("n_seq_max", [](const py_drafter & self) { return self.impl().n_seq_max(); })
        .def_property_readonly(
            "n_unroll", [](const py_drafter & self) { return self.impl().n_unroll(); },
            "steps of a chain that one graph may take")
        .def_property_readonly(
            "is_parallel", [](const py_drafter & self) { return self.impl().is_parallel(); },
            "P-EAGLE: one graph drafts all tokens, and expand() costs nothing")
        .def(
            "n_past", [](const py_drafter & self, llama_seq_id seq_id) { return self.impl().n_past(seq_id); },
            py::arg("seq_id") = 0, "Positions whose rows were taken in.")
        .def(
            "n_waiting", [](const py_drafter & self, llama_seq_id seq_id) { return self.impl().n_waiting(seq_id); },
            py::arg("seq_id") = 0, "Rows whose K/V is made when somebody drafts for the sequence.")
        .def_property_readonly("n_vocab_dft", [](const py_drafter & self) { return self.impl().weights().n_vocab_dft; })
        .def_property_readonly(
            "n_bytes_own", [](const py_drafter & self) { return self.impl().weights().n_bytes_own; },
            "of the head's tensors")
        .def_property_readonly(
            "n_bytes_read", [](const py_drafter & self) { return self.impl().weights().n_bytes_read; },
            "of the matrices that the first graph of a round reads, lm_head included")
        .def_property_readonly(
            "n_bytes_shared", [](const py_drafter & self) { return self.impl().weights().n_bytes_shared; },
            "of the target's tensors that the head uses in place")
        .def_property_readonly(
            "n_bytes_cache",
            [](py_drafter & self) {
                const busy_flag::scope scope(self.busy);
                return self.impl().n_bytes_cache();
            },
            "of the K/V cache as of now: it grows and shrinks with what is held")
        .def_property_readonly(
            "draft_logits",
            [](py_drafter & self) {
                const busy_flag::scope scope(self.busy);
                return to_array(self.impl().logits());
            },
            "float32 (n_vocab_dft,), of the last drafted token")
        .def_property_readonly(
            "hidden_state",
            [](py_drafter & self) {
                const busy_flag::scope scope(self.busy);
                return to_array(self.impl().hidden_state());
            },
            "float32 (n_embd,), the recurrent row after the last drafted token")
        .def_property_readonly("t_process_us", [](const py_drafter & self) { return self.impl().stats.t_process_us; })
        .def_property_readonly("t_propose_us", [](const py_drafter & self) { return self.impl().stats.t_propose_us; })
        .def_property_readonly(
            "t_graph_us", [](const py_drafter & self) { return self.impl().t_graph_us(); }, "of both, inside ggml")
        .def_property_readonly(
            "n_graph_nodes", [](const py_drafter & self) { return self.impl().n_graph_nodes(); },
            "of the last graph, without those that compute nothing")
        .def_property_readonly("n_propose", [](const py_drafter & self) { return self.impl().stats.n_propose; })
        .def_property_readonly("n_steps", [](const py_drafter & self) { return self.impl().stats.n_steps; });
}

} // namespace eagle3::python
