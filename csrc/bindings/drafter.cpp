#include "drafter/drafter.h"

#include "module.h"
#include "nogil.h"
#include "py_drafter.h"
#include "target/feature_tap.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <algorithm>
#include <optional>

namespace eagle3::python {

namespace {

using tokens_t  = std::vector<llama_token>;
using seq_ids_t = std::vector<llama_seq_id>;
using rows_t    = py::array_t<float, py::array::c_style | py::array::forcecast>;

// The rows of a tap's last decode with only the boundaries that a drafter reads.
class tap_rows {
  public:
    tap_rows(const drafter & drafter, const feature_tap * tap) {
        if (drafter.n_embd_feat() == 0) {
            return;
        }
        if (tap == nullptr) {
            throw std::invalid_argument("expected a tap: this drafter reads the target's rows");
        }
        const auto & own = drafter.boundaries();
        const auto & all = tap->boundaries();
        n_row_           = static_cast<size_t>(tap->n_row_floats());
        n_embd_          = n_row_ / all.size();
        std::vector<size_t> offsets;
        for (const int32_t b : own) {
            const auto at = static_cast<size_t>(std::find(all.begin(), all.end(), b) - all.begin());
            if (at < all.size()) {
                offsets.push_back(at * n_embd_);
            }
        }
        if (offsets.size() * n_embd_ != static_cast<size_t>(drafter.n_embd_feat())) {
            throw incompatible_draft_error(format(
                "'%s': it reads rows of %d values at %zu boundaries, the tap has %zu of them, of %zu values each",
                drafter.path().c_str(), drafter.n_embd_feat(), own.size(), offsets.size(), n_embd_));
        }
        rows_ = tap->rows();
        if (own != all) {
            offsets_ = std::move(offsets);
        }
    }

    // Lets the drafter append the rows of these tokens. row_ids: their rows in the decode; null: the first ones.
    void process(drafter & drafter, const llama_token * tokens, int32_t n_tokens, int32_t n_past, llama_seq_id seq_id,
                 const int32_t * row_ids, bool can_defer) {
        const float * rows = rows_;
        if (!offsets_.empty()) {
            gathered_.clear();
            for (int32_t i = 0; i < n_tokens; ++i) {
                const float * row = rows_ + n_row_ * static_cast<size_t>(row_ids != nullptr ? row_ids[i] : i);
                for (const size_t offset : offsets_) {
                    gathered_.insert(gathered_.end(), row + offset, row + offset + n_embd_);
                }
            }
            rows    = gathered_.data();
            row_ids = nullptr;
        }
        drafter.process(rows, tokens, n_tokens, n_past, seq_id, row_ids, can_defer);
    }

  private:
    const float *       rows_   = nullptr; // null: the drafter reads none
    size_t              n_row_  = 0;       // floats
    size_t              n_embd_ = 0;
    std::vector<size_t> offsets_; // of the boundaries that the drafter reads; empty: it reads all, in this order
    std::vector<float>  gathered_;
};

// rows: their indices in the tap's last decode.
void check_rows(const feature_tap * tap, const tokens_t & tokens, const std::vector<int32_t> & rows) {
    if (rows.size() != tokens.size()) {
        throw std::invalid_argument(
            format("expected one row per token, found %zu rows for %zu tokens", rows.size(), tokens.size()));
    }
    for (const int32_t row : rows) {
        if (tap != nullptr && (row < 0 || row >= tap->n_rows())) {
            throw std::invalid_argument(format("row %d: the last decode had %d rows", row, tap->n_rows()));
        }
    }
}

void process_tap(py_drafter & self, std::optional<const feature_tap *> tap_or_none, const tokens_t & tokens,
                 int32_t n_past, llama_seq_id seq_id, const std::optional<std::vector<int32_t>> & rows,
                 bool can_defer) {
    const busy_flag::scope scope(self.busy);
    const feature_tap *    tap      = tap_or_none.value_or(nullptr);
    const auto             n_tokens = static_cast<int32_t>(tokens.size());
    if (rows) {
        check_rows(tap, tokens, *rows);
    } else if (tap != nullptr && n_tokens > tap->n_rows()) {
        throw std::invalid_argument(
            format("expected one row per token, found %d rows for %d tokens", tap->n_rows(), n_tokens));
    }
    tap_rows(self.impl(), tap)
        .process(self.impl(), tokens.data(), n_tokens, n_past, seq_id, rows ? rows->data() : nullptr, can_defer);
}

// A sequence's id, n_past, tokens, rows and can_defer.
using tap_part = std::tuple<llama_seq_id, int32_t, tokens_t, std::vector<int32_t>, bool>;

void process_batch(py_drafter & self, std::optional<const feature_tap *> tap_or_none,
                   const std::vector<tap_part> & parts) {
    const busy_flag::scope scope(self.busy);
    const feature_tap *    tap     = tap_or_none.value_or(nullptr);
    drafter &              drafter = self.impl();
    tap_rows               all_rows(drafter, tap);
    for (const auto & [seq_id, n_past, tokens, rows, can_defer] : parts) {
        check_rows(tap, tokens, rows);
        if (drafter.n_past(seq_id) < n_past) {
            drafter.restart(n_past, seq_id);
        }
        const int32_t n      = static_cast<int32_t>(tokens.size());
        const int32_t n_seen = std::min(n, drafter.n_past(seq_id) - n_past);
        all_rows.process(drafter, tokens.data() + n_seen, n - n_seen, n_past + n_seen, seq_id, rows.data() + n_seen,
                         can_defer);
    }
}

void process_rows(py_drafter & self, const rows_t & rows, const tokens_t & tokens, int32_t n_past, llama_seq_id seq_id,
                  bool can_defer) {
    if (rows.ndim() < 2 || rows.shape(0) != static_cast<py::ssize_t>(tokens.size()) ||
        rows.size() != rows.shape(0) * self.impl().n_embd_feat()) {
        throw std::invalid_argument(
            format("expected rows of shape (%zu, %d)", tokens.size(), self.impl().n_embd_feat()));
    }
    const float *          data = rows.data();
    const nogil            release;
    const busy_flag::scope scope(self.busy);
    self.impl().process(data, tokens.data(), static_cast<int32_t>(tokens.size()), n_past, seq_id, nullptr, can_defer);
}

py::typing::List<py::typing::Tuple<py::int_, py::int_, py::float_, py::int_, py::int_>> nodes(py_drafter & self) {
    const busy_flag::scope                                                                  scope(self.busy);
    py::typing::List<py::typing::Tuple<py::int_, py::int_, py::float_, py::int_, py::int_>> result;
    for (const draft_node & node : self.impl().nodes()) {
        result.append(py::make_tuple(node.parent, node.token, node.p, node.depth, node.seq_id));
    }
    return result;
}

} // namespace

void register_drafter(py::module_ & m) {
    const auto without_gil = py::call_guard<nogil>();

    py::class_<py_drafter>(m, "Drafter",
                           R"pbdoc(
            Drafts tokens for several sequences from the target's rows. Each kind of drafter is a class of its own.

            One thread at a time: a second one gets BusyError.
        )pbdoc")
        .def_property_readonly(
            "cpu_kernels", [](const py_drafter & self) { return self.impl().cpu_kernels(); },
            "The number of the drafter's own weights that each kernel computes, by its name.")
        .def_property_readonly(
            "matrices",
            [](const py_drafter & self) {
                std::vector<uintptr_t> addresses;
                for (const ggml_tensor * weight : self.impl().matrices()) {
                    addresses.push_back(reinterpret_cast<uintptr_t>(weight));
                }
                return addresses;
            },
            "Addresses of the ggml tensors that the drafter multiplies by, except the target's.")
        .def(
            "use_cpu_kernels",
            [](py_drafter & self, const kernels::row_limits & n_rows_max) {
                const busy_flag::scope scope(self.busy);
                self.impl().use_cpu_kernels(n_rows_max);
            },
            py::arg("n_rows_max"), without_gil,
            "Have our CPU kernels multiply by the drafter's own weights. n_rows_max: the most rows of an operation, by "
            "kernel name.")
        .def("process", &process_tap, py::arg("tap"), py::arg("tokens"), py::arg("n_past"), py::arg("seq_id") = 0,
             py::arg("rows") = py::none(), py::arg("can_defer") = false, without_gil,
             R"pbdoc(
            Append the rows of a sequence's tokens at positions n_past, n_past + 1, ... from the tap's last decode, one
            per token.

            rows: their indices in the batch, by default the first ones. tap: None for a drafter that reads no rows
            (n_embd_feat 0). can_defer: whether no begin() is expected soon, so that the K/V of a prompt is computed
            only with it.
        )pbdoc")
        .def("process_batch", &process_batch, py::arg("tap"), py::arg("parts"), without_gil,
             R"pbdoc(
            Call `process` for several sequences, each (seq_id, n_past, tokens, rows, can_defer).

            Rows that a sequence has already are skipped; a sequence that lacks rows before these goes on without them
            (`restart`).
        )pbdoc")
        .def("process_rows", &process_rows, py::arg("rows"), py::arg("tokens"), py::arg("n_past"),
             py::arg("seq_id") = 0, py::arg("can_defer") = false,
             "Append rows from an array, float32 of shape (n_tokens, n_boundaries * n_embd_tgt).")
        .def(
            "set_noise",
            [](py_drafter & self, std::optional<std::shared_ptr<gumbel_noise>> noise, llama_seq_id seq_id) {
                const busy_flag::scope scope(self.busy);
                self.impl().set_noise(noise.value_or(nullptr), seq_id);
            },
            py::arg("noise"), py::arg("seq_id") = 0,
            "Set the noise that the sequence's next tokens will be drawn with; None = not known, or greedy.")
        .def(
            "set_rules",
            [](py_drafter & self, std::optional<std::shared_ptr<grammar_lookahead>> rules, llama_seq_id seq_id) {
                const busy_flag::scope scope(self.busy);
                self.impl().set_rules(rules.value_or(nullptr), seq_id);
            },
            py::arg("rules"), py::arg("seq_id") = 0,
            "Set the grammar that the sequence's next tokens must follow, until its text changes; None = any token may "
            "come.")
        .def(
            "leave_out",
            [](py_drafter & self, std::vector<llama_token> tokens) {
                const busy_flag::scope scope(self.busy);
                std::sort(tokens.begin(), tokens.end());
                self.impl().leave_out(tokens);
            },
            py::arg("tokens"),
            "Never draft these tokens: in the drafter's own vocabulary they have other texts than in the target's.")
        .def(
            "draft_always",
            [](py_drafter & self, const std::vector<llama_token> & tokens) {
                const busy_flag::scope scope(self.busy);
                self.impl().draft_always(tokens);
            },
            py::arg("tokens"), "Draft these tokens too, whatever `limit_vocab` has left out: earlier answers had them.")
        .def(
            "limit_vocab",
            [](py_drafter & self, int64_t n_first) {
                const busy_flag::scope scope(self.busy);
                return self.impl().limit_vocab(n_first);
            },
            py::arg("n_first"), without_gil,
            R"pbdoc(
            Draft only the n_first most frequent tokens and those of the texts, so that the CPU computes no logits of
            others; 0 = all.

            Returns False if the drafter cannot save time so, and drafts all of its tokens.
        )pbdoc")
        .def_property_readonly(
            "draft_vocab", [](const py_drafter & self) { return self.impl().draft_vocab(); },
            "Tokens that are always drafted, beside those of the texts; 0 = all.")
        .def(
            "begin",
            [](py_drafter & self, const seq_ids_t & seq_ids, const tokens_t & ids_last, int32_t top_k,
               int32_t n_steps) {
                const busy_flag::scope scope(self.busy);
                self.impl().begin(seq_ids, ids_last, top_k, n_steps);
            },
            py::arg("seq_ids"), py::arg("ids_last"), py::arg("top_k"), py::arg("n_steps") = 1, without_gil,
            R"pbdoc(
            Start a draft for each sequence, with the top_k most probable tokens after its id_last as nodes.

            With n_steps > 1 (at most n_unroll) the best node is followed further in the same graph. A parallel head
            computes n_steps positions and appends the nodes of the first one.
        )pbdoc")
        .def(
            "expand",
            [](py_drafter & self, const std::vector<int32_t> & nodes, int32_t top_k) {
                const busy_flag::scope scope(self.busy);
                self.impl().expand(nodes, top_k);
            },
            py::arg("nodes"), py::arg("top_k"), without_gil,
            R"pbdoc(
            Append the top_k most probable tokens after each of these nodes, in one graph.

            A node can be expanded once, and at most 128 nodes of a sequence. A node at the end of the context gets
            none.
        )pbdoc")
        .def_property_readonly("nodes", &nodes,
                               R"pbdoc(
            Nodes of the draft that begin() started: (parent, token, p, depth, seq_id), parents before their children.

            `parent` is an index, -1 = it follows id_last; `p` is the probability after the parent. Any call but
            `expand` ends the draft.
        )pbdoc")
        .def(
            "truncate",
            [](py_drafter & self, int32_t n_past, llama_seq_id seq_id, bool same_next) {
                const busy_flag::scope scope(self.busy);
                return self.impl().truncate(n_past, seq_id, same_next);
            },
            py::arg("n_past"), py::arg("seq_id") = 0, py::arg("same_next") = false, without_gil,
            R"pbdoc(
            Remove positions from n_past on. Returns the position from which rows must be processed again.

            same_next: whether the next token at n_past is the one that was there, so that the row before it is not
            needed again.
        )pbdoc")
        .def(
            "copy",
            [](py_drafter & self, llama_seq_id src, llama_seq_id dst, int32_t n_past, bool same_next) {
                const busy_flag::scope scope(self.busy);
                return self.impl().copy(src, dst, n_past, same_next);
            },
            py::arg("src"), py::arg("dst"), py::arg("n_past"), py::arg("same_next") = false, without_gil,
            R"pbdoc(
            Copy the positions before n_past of sequence src to dst, in place of what dst holds.

            Returns the position from which rows of `dst` must be processed: what truncate(n_past, same_next) would
            return for `src`, which stays as it is. Raises ValueError if `src` has fewer than n_past positions.
        )pbdoc")
        .def(
            "restart",
            [](py_drafter & self, int32_t n_past, llama_seq_id seq_id) {
                const busy_flag::scope scope(self.busy);
                self.impl().restart(n_past, seq_id);
            },
            py::arg("n_past"), py::arg("seq_id") = 0, without_gil,
            "Clear the sequence. Its next rows begin at n_past; earlier positions are never attended to.")
        .def(
            "add_image",
            [](py_drafter & self, int32_t first,
               const py::array_t<int32_t, py::array::c_style | py::array::forcecast> & pos, int32_t n_pos,
               llama_seq_id seq_id) {
                const busy_flag::scope scope(self.busy);
                self.impl().add_image(first, n_pos, { pos.data(), pos.data() + pos.size() }, seq_id);
            },
            py::arg("first"), py::arg("pos"), py::arg("n_pos"), py::arg("seq_id") = 0,
            R"pbdoc(
            Announce an image, whose rows come next, from position `first` on. For heads with M-RoPE's sections
            (n_pos_per_row 4).

            pos: the rows' positions, int32 (4, n). n_pos: the positions by which tokens after the image count on.
        )pbdoc")
        .def_property_readonly(
            "n_pos_per_row", [](const py_drafter & self) { return self.impl().n_pos_per_row(); },
            "Positions of a row: 4 for a head with M-RoPE's sections, else 1.")
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
            py::arg("seq_id") = py::none(), without_gil, "Clear a sequence, or all of them.")
        .def("close", &py_drafter::close, "Free the drafter: every later call raises.")
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
            py::arg("seq_id") = 0, "Return a sequence's K/V cache and waiting rows as bytes.")
        .def(
            "state_set",
            [](py_drafter & self, const py::bytes & bytes, llama_seq_id seq_id) {
                const auto             view = static_cast<std::string_view>(bytes);
                const nogil            release;
                const busy_flag::scope scope(self.busy);
                self.impl().state_set({ view.begin(), view.end() }, seq_id);
            },
            py::arg("state"), py::arg("seq_id") = 0,
            "Restore a sequence from the bytes of state_get(), of this or another sequence. Raises ValueError, "
            "IncompatibleDraftError.")
        .def_property_readonly("boundaries", [](const py_drafter & self) { return self.impl().boundaries(); })
        .def_property_readonly(
            "n_embd_feat", [](const py_drafter & self) { return self.impl().n_embd_feat(); },
            "Values of a row that the drafter reads; 0 = it reads none.")
        .def_property_readonly("device", [](const py_drafter & self) { return self.impl().device(); })
        .def_property_readonly("n_ctx", [](const py_drafter & self) { return self.impl().n_ctx(); })
        .def_property_readonly("n_seq_max", [](const py_drafter & self) { return self.impl().n_seq_max(); })
        .def_property_readonly(
            "n_unroll", [](const py_drafter & self) { return self.impl().n_unroll(); },
            "Steps of a chain that one graph computes, at most.")
        .def_property_readonly(
            "n_expand", [](const py_drafter & self) { return self.impl().n_expand(); },
            "Nodes of a sequence that a draft may expand, at most; a chain has at most one token more.")
        .def_property_readonly(
            "is_parallel", [](const py_drafter & self) { return self.impl().is_parallel(); },
            "Whether one graph drafts all tokens (P-EAGLE), so that expand() costs nothing.")
        .def(
            "n_past", [](const py_drafter & self, llama_seq_id seq_id) { return self.impl().n_past(seq_id); },
            py::arg("seq_id") = 0, "Return the number of positions whose rows were appended.")
        .def(
            "n_waiting", [](const py_drafter & self, llama_seq_id seq_id) { return self.impl().n_waiting(seq_id); },
            py::arg("seq_id") = 0, "Return the number of rows that `begin` has to evaluate first.")
        .def_property_readonly(
            "n_bytes_read", [](const py_drafter & self) { return self.impl().n_bytes_read(); },
            "Bytes of the matrices that the first graph of a draft reads, lm_head included.")
        .def_property_readonly("t_process_us", [](const py_drafter & self) { return self.impl().stats.t_process_us; })
        .def_property_readonly("t_propose_us", [](const py_drafter & self) { return self.impl().stats.t_propose_us; })
        .def_property_readonly(
            "t_graph_us", [](const py_drafter & self) { return self.impl().t_graph_us(); },
            "Microseconds of process and propose that were spent inside ggml.")
        .def_property_readonly("n_propose", [](const py_drafter & self) { return self.impl().stats.n_propose; })
        .def_property_readonly("n_steps", [](const py_drafter & self) { return self.impl().stats.n_steps; });
}

} // namespace eagle3::python
