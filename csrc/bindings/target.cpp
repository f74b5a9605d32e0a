#include "target/target.h"

#include "busy_flag.h"
#include "error.h"
#include "kernels/batch_invariance.h"
#include "module.h"
#include "nogil.h"
#include "target/graph_check.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <new>
#include <optional>
#include <string_view>
#include <tuple>

namespace eagle3::python {

namespace {

using tokens_t  = std::vector<llama_token>;
using pos_t     = std::vector<llama_pos>;
using seq_ids_t = std::vector<llama_seq_id>;
using seqs_t    = std::vector<seq_ids_t>;

// [kind, why ggml computes it (empty: our kernels do), type]: the number of operations of a graph.
using sides_t = std::map<std::tuple<std::string, std::string, std::string>, int32_t>;

std::tuple<std::string, std::string, std::string> names_of(const kernels::side_of_op & side) {
    static constexpr const char * kinds[]   = { "products", "attention", "recurrence" };
    static constexpr const char * reasons[] = { "", "device", "adapter", "source", "type", "rows", "shape" };
    return { kinds[static_cast<int>(side.of)], reasons[static_cast<int>(side.why)], ggml_type_name(side.type) };
}

// A target, and the flag that keeps a second thread out.
struct py_target {
    py_target(uintptr_t ctx, uintptr_t model, feature_tap * tap, int32_t n_seq, int32_t n_guards) :
        impl(checked(ctx, sides), reinterpret_cast<const llama_model *>(model), tap, n_seq, n_guards) {}

    // Checks the graphs before the tap changes them, so that the buffers that llama.cpp has made for them do not
    // change.
    static llama_context * checked(uintptr_t address, sides_t & sides) {
        auto *                 ctx = reinterpret_cast<llama_context *>(address);
        std::array<sides_t, 2> found;
        if (ctx) {
            check_graphs(ctx, UINT32_MAX, [&](const ggml_tensor * node, int graph) {
                if (const auto side = kernels::side_of(node)) {
                    ++found[graph][names_of(*side)];
                }
            });
        }
        for (const sides_t & of_graph : found) {
            for (const auto & [names, n] : of_graph) {
                sides[names] = std::max(sides[names], n);
            }
        }
        return ctx;
    }

    sides_t   sides;
    target    impl;
    busy_flag busy;
};

part_logits logits_of(const std::string & name) {
    if (name != "none" && name != "last" && name != "all") {
        throw std::invalid_argument("expected logits to be none, last or all, found '" + name + "'");
    }
    return name == "none" ? part_logits::none : name == "last" ? part_logits::last : part_logits::all;
}

batch_part make_part(llama_seq_id seq_id, int32_t n_past, tokens_t tokens, const tokens_t & draft,
                     const std::vector<int32_t> & parents, const std::string & logits) {
    batch_part part{ seq_id, n_past, std::move(tokens), {}, logits_of(logits), !draft.empty() };
    if (draft.empty()) {
        return part;
    }
    const size_t n = part.tokens.size();
    if (!parents.empty() && parents.size() != draft.size()) {
        throw std::invalid_argument(format("%zu drafted tokens, but %zu parents", draft.size(), parents.size()));
    }
    bool is_chain = true;
    for (size_t i = 0; i < parents.size(); ++i) {
        is_chain = is_chain && parents[i] == static_cast<int32_t>(i) - 1;
    }
    part.tokens.insert(part.tokens.end(), draft.begin(), draft.end());
    part.logits = part_logits::all;
    if (!is_chain) {
        if (n != 1) {
            throw std::invalid_argument(format("a tree stands after one token, not after %zu", n));
        }
        part.parents = { -1 };
        for (const int32_t parent : parents) {
            part.parents.push_back(parent + 1);
        }
    }
    return part;
}

using rows_t      = py::array_t<float, py::array::c_style | py::array::forcecast>;
using positions_t = py::array_t<llama_pos, py::array::c_style | py::array::forcecast>;

batch_part make_media_part(llama_seq_id seq_id, int32_t n_past, tokens_t tokens, const rows_t & rows,
                           const std::optional<positions_t> & pos, int32_t offset, int32_t n_pos, bool causal,
                           const std::string & logits) {
    batch_part part{ seq_id, n_past, std::move(tokens), {}, logits_of(logits) };
    if (rows.size() == 0) {
        throw std::invalid_argument("expected rows of an image, found none");
    }
    part.media.embd.assign(rows.data(), rows.data() + rows.size());
    if (pos) {
        part.media.pos.assign(pos->data(), pos->data() + pos->size());
    }
    part.media.offset = offset;
    part.media.n_pos  = n_pos;
    part.media.causal = causal;
    return part;
}

void decode(py_target & self, const tokens_t & tokens, int32_t n_past, bool logits_all, llama_seq_id seq_id) {
    const busy_flag::scope scope(self.busy);
    self.impl.decode({ { seq_id, n_past, tokens, {}, logits_all ? part_logits::all : part_logits::last } });
}

void decode_parts(py_target & self, const std::vector<batch_part> & parts) {
    const busy_flag::scope scope(self.busy);
    self.impl.decode(parts);
}

py::bytes state_get(py_target & self, llama_seq_id seq_id) {
    py::object state;
    {
        const nogil            release;
        const busy_flag::scope scope(self.busy);
        self.impl.memory().state_get(seq_id, [&](size_t n) {
            const py::gil_scoped_acquire acquire;
            state = py::reinterpret_steal<py::object>(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(n)));
            if (!state) {
                PyErr_Clear();
                throw std::bad_alloc();
            }
            return reinterpret_cast<uint8_t *>(PyBytes_AS_STRING(state.ptr()));
        });
    }
    return state;
}

void state_set(py_target & self, llama_seq_id seq_id, const py::bytes & state) {
    const std::string_view bytes = state;
    const nogil            release;
    const busy_flag::scope scope(self.busy);
    self.impl.memory().state_set(seq_id, reinterpret_cast<const uint8_t *>(bytes.data()), bytes.size());
}

llama_token sample_from(py_target & self, uintptr_t sampler,
                        const py::array_t<float, py::array::c_style | py::array::forcecast> & logits,
                        uintptr_t                                                             grammar) {
    const busy_flag::scope scope(self.busy);
    if (logits.ndim() != 1 || logits.shape(0) != self.impl.n_vocab()) {
        throw std::invalid_argument(format("expected %d logits in one dimension", self.impl.n_vocab()));
    }
    return self.impl.sampler().sample(reinterpret_cast<llama_sampler *>(sampler), logits.data(),
                                      /*n_best =*/0, reinterpret_cast<llama_sampler *>(grammar));
}

std::vector<std::pair<llama_token, float>> sampled_probs(py_target & self) {
    const busy_flag::scope                     scope(self.busy);
    std::vector<std::pair<llama_token, float>> res;
    for (const llama_token_data & candidate : self.impl.sampler().probs()) {
        res.emplace_back(candidate.id, candidate.p);
    }
    return res;
}

void decode_batch(py_target & self, const tokens_t & tokens, const pos_t & pos, const seqs_t & seq_ids,
                  const std::vector<bool> & logits) {
    const busy_flag::scope scope(self.busy);
    self.impl.decode_batch(tokens, pos, seq_ids, logits);
}

llama_token sample(py_target & self, uintptr_t sampler, int32_t row, int32_t n_best, uintptr_t grammar) {
    const busy_flag::scope scope(self.busy);
    return self.impl.sample(reinterpret_cast<llama_sampler *>(sampler), row, n_best,
                            reinterpret_cast<llama_sampler *>(grammar));
}

llama_token argmax(py_target & self, int32_t row) {
    const busy_flag::scope scope(self.busy);
    return self.impl.argmax(row);
}

py::array_t<float> logits(py_target & self, int32_t row) {
    const busy_flag::scope scope(self.busy);
    return py::array_t<float>(self.impl.n_vocab(), self.impl.logits(row));
}

py::array_t<float> logits_all(py_target & self, int32_t n) {
    const busy_flag::scope scope(self.busy);
    if (n < 0 || n > static_cast<int32_t>(self.impl.tokens().size())) {
        throw std::invalid_argument(
            format("%d rows were asked for, the last batch had %zu tokens", n, self.impl.tokens().size()));
    }
    const py::ssize_t  n_vocab = self.impl.n_vocab();
    py::array_t<float> res({ static_cast<py::ssize_t>(n), n_vocab });
    for (int32_t i = 0; i < n; ++i) {
        memcpy(res.mutable_data(i, 0), self.impl.logits(i), n_vocab * sizeof(float));
    }
    return res;
}

template <typename T>
py::array_t<T> copy_of(const std::vector<T> & values) {
    return py::array_t<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

} // namespace

void register_target(py::module_ & m) {
    using without_gil = py::call_guard<nogil>;

    py::class_<batch_part>(m, "BatchPart", R"pbdoc(
            The tokens of one sequence in a batch. They follow its first n_past positions; all later positions are
            removed.

            draft: drafted tokens after the last of `tokens`; `Target.accept` keeps some of them. parents: for each
            drafted token, the index in `draft` of the token before it, -1 = the last of `tokens`; empty = a chain. A
            tree stands after a single token. logits: which of `tokens` get logits: "none", "last" or "all"; with a
            draft all rows get them.
        )pbdoc")
        .def(py::init(&make_part), py::arg("seq_id"), py::arg("n_past"), py::arg("tokens"),
             py::arg("draft") = tokens_t(), py::arg("parents") = std::vector<int32_t>(), py::arg("logits") = "last")
        .def_static("media", &make_media_part, py::arg("seq_id"), py::arg("n_past"), py::arg("tokens"), py::arg("rows"),
                    py::kw_only(), py::arg("pos") = py::none(), py::arg("offset") = 0, py::arg("n_pos") = 0,
                    py::arg("causal") = true, py::arg("logits") = "none", R"pbdoc(
            Make a part of embeddings instead of tokens: a piece of an image or a sound. It must be the only part of its
            batch.

            tokens: a token for each row, which stands for it in lists of tokens. rows: float32 (n, n_embd_inp). pos:
            with M-RoPE the rows' positions, int32 (4, n), else None. offset: rows of the same image that were decoded
            before. n_pos: with M-RoPE, positions of the whole image. causal: whether a row attends only to rows before
            it.
        )pbdoc")
        .def_readonly("seq_id", &batch_part::seq_id)
        .def_readonly("n_past", &batch_part::n_past)
        .def_readonly("tokens", &batch_part::tokens, "The tokens, those of the draft included.")
        .def_readonly("is_draft", &batch_part::is_draft);

    py::class_<saved_state, std::shared_ptr<saved_state>>(m, "SavedState", R"pbdoc(
            The recurrent states and sliding windows of a sequence at one position, which cannot be cut at others; see
            `Target.save`.

            n_past: positions that the sequence had. data: the bytes of another SavedState.
        )pbdoc")
        .def(py::init([](int32_t n_past, const py::bytes & data) {
                 const std::string_view bytes = data;
                 if (n_past < 1 || bytes.empty()) {
                     throw std::invalid_argument("expected a saved state, found none");
                 }
                 return std::make_shared<saved_state>(saved_state{ n_past, { bytes.begin(), bytes.end() } });
             }),
             py::arg("n_past"), py::arg("data"))
        .def_readonly("n_past", &saved_state::n_past, "Positions that the sequence had.")
        .def_property_readonly("n_bytes", [](const saved_state & self) { return self.data.size(); })
        .def_property_readonly("data", [](const saved_state & self) {
            return py::bytes(reinterpret_cast<const char *>(self.data.data()), self.data.size());
        });

    py::class_<py_target>(m, "Target", R"pbdoc(
            The target's context: decodes batches, samples from their rows, and takes rejected tokens back.

            `ctx` and `model` are addresses from llama-cpp-python and stay the caller's; call `close()` before freeing
            them. One thread at a time: a second one gets BusyError.
        )pbdoc")
        .def(py::init<uintptr_t, uintptr_t, feature_tap *, int32_t, int32_t>(), py::arg("ctx"), py::arg("model"),
             py::arg("tap") = py::none(), py::arg("n_seq") = 0, py::arg("n_guards") = 0, py::keep_alive<1, 4>(),
             R"pbdoc(
            Wrap a context.

            n_seq: sequences 0 to n_seq - 1 are the caller's, the context's other ids are for the leaves of trees; 0 =
            all are the caller's. n_guards: n_seq, to have as many of the other ids keep cells that have left a sliding
            window of a pool, so that a rejected draft can be taken back; 0 = llama.cpp may reuse such cells.
        )pbdoc")
        .def("decode", &decode, py::arg("tokens"), py::arg("n_past"), py::arg("logits_all") = true,
             py::arg("seq_id") = 0, without_gil(), R"pbdoc(
            Remove positions from `n_past` on and evaluate `tokens` there as one batch.

            Logits are kept for all tokens, or only for the last one. If it raises, the memory ends at `n_past`, or at
            an earlier position that it can go back to; the method `n_past` returns it.
        )pbdoc")
        .def("decode_parts", &decode_parts, py::arg("parts"), without_gil(), R"pbdoc(
            Evaluate several sequences in one batch: chunks of prompts, chains and trees together.

            Rows are numbered through all parts, in order.
        )pbdoc")
        .def(
            "accept",
            [](py_target & self, llama_seq_id seq_id, const std::vector<int32_t> & path) {
                const busy_flag::scope scope(self.busy);
                self.impl.memory().accept(seq_id, path);
            },
            py::arg("seq_id"), py::arg("path"), without_gil(), R"pbdoc(
            Accept a path through the rows of a part with a draft, and remove the part's other tokens.

            Rows count from the part's first one, which the path begins with: 0, 1, 2, ... for a chain. An empty path
            removes the whole part; snapshots do not reach that far, so that the sequence is removed altogether unless a
            state was saved before the part.
        )pbdoc")
        .def(
            "accept_batch",
            [](py_target & self, const seq_ids_t & seq_ids, const std::vector<std::vector<int32_t>> & paths) {
                const busy_flag::scope scope(self.busy);
                if (paths.size() != seq_ids.size()) {
                    throw std::invalid_argument(
                        format("expected one path per sequence, found %zu for %zu", paths.size(), seq_ids.size()));
                }
                for (size_t i = 0; i < seq_ids.size(); ++i) {
                    if (self.impl.memory().has_draft(seq_ids[i])) {
                        self.impl.memory().accept(seq_ids[i], paths[i]);
                    }
                }
            },
            py::arg("seq_ids"), py::arg("paths"), without_gil(),
            "Call `accept` for several sequences; a sequence without a draft stays as it is.")
        .def(
            "has_draft",
            [](py_target & self, llama_seq_id seq_id) {
                const busy_flag::scope scope(self.busy);
                return self.impl.memory().has_draft(seq_id);
            },
            py::arg("seq_id"), "Whether the sequence's last part has a draft of which no path has been accepted yet.")
        .def(
            "set_device_argmax",
            [](py_target & self, int32_t n_outputs) {
                const busy_flag::scope scope(self.busy);
                self.impl.set_device_argmax(n_outputs);
            },
            py::arg("n_outputs"), without_gil(), R"pbdoc(
            Have the target's device take the argmax of each row, so that logits are not copied; `logits` and `sample`
            then raise.

            n_outputs: rows with logits that a sequence may have in a batch, at most the context's
            n_outputs_max_per_seq; 0 = copy logits to the host again.
        )pbdoc")
        .def_property_readonly(
            "kernel_sides", [](const py_target & self) { return self.sides; }, R"pbdoc(
            Counts of operations whose rows depend on other rows if ggml computes them, by (what, why, type), at
            creation.

            what: products, attention or recurrence. why: empty if our kernels compute them, else the reason: device,
            adapter, source (no kernel for the weights or queries), type (of the cache), rows (too many) or shape. type:
            of the weights, or of the cache.
        )pbdoc")
        .def_property_readonly(
            "logits_are_remote", [](const py_target & self) { return self.impl.logits_are_remote(); },
            "Whether logits are computed on a device whose memory the host cannot read.")
        .def("decode_batch", &decode_batch, py::arg("tokens"), py::arg("pos"), py::arg("seq_ids"), py::arg("logits"),
             without_gil(),
             "Evaluate one batch of any sequences at the given positions. No position is removed before.")
        .def("sample", &sample, py::arg("sampler"), py::arg("row"), py::arg("n_best") = 0, py::arg("grammar") = 0,
             without_gil(), R"pbdoc(
            Sample a token from a row of the last batch with a llama_sampler (its address), which then accepts the
            token.

            n_best: the sampler gets so many of the most probable tokens alone, which suffice if it begins with top-k; 0
            = all. grammar: a llama_sampler that is asked about the drawn token; if it refuses that, another one is
            drawn. Row -1 is the last row of a decode by other means, as in `argmax` and `logits`.
        )pbdoc")
        .def("sample_from", &sample_from, py::arg("sampler"), py::arg("logits"), py::arg("grammar") = 0,
             "Sample a token as `sample` does, from logits of the caller's, float32 (n_vocab,).")
        .def("sampled_probs", &sampled_probs,
             R"pbdoc(
            Return the tokens that the last `sample_from` drew from with their probabilities, the most probable first.

            The list is empty if the sampler is greedy, which computes no probabilities.
        )pbdoc")
        .def("argmax", &argmax, py::arg("row"), "Return the most probable token of a row; of several, the first one.")
        .def("logits", &logits, py::arg("row"),
             "Copy the logits of a row: float32, (n_vocab,). Row -1 is the context's last one.")
        .def("logits_all", &logits_all, py::arg("n"), "Copy the logits of the first n rows: float32, (n, n_vocab).")
        .def(
            "truncate",
            [](py_target & self, int32_t n_past, llama_seq_id seq_id) {
                const busy_flag::scope scope(self.busy);
                return self.impl.memory().truncate(n_past, seq_id);
            },
            py::arg("n_past"), py::arg("seq_id") = 0, R"pbdoc(
            Remove positions from `n_past` on. Returns the position from which tokens must be decoded again.

            That is n_past, or, if the memory cannot go back there, the position of the last state that was saved before
            it (`save`), 0 without one.
        )pbdoc")
        .def(
            "save",
            [](py_target & self, llama_seq_id seq_id) {
                const busy_flag::scope scope(self.busy);
                auto state = std::const_pointer_cast<saved_state>(self.impl.memory().rollback(seq_id).save());
                return state != nullptr ? std::optional(std::move(state)) : std::nullopt;
            },
            py::arg("seq_id") = 0, R"pbdoc(
            Save the present state, if this memory cannot go back to it by itself, else return None.

            `truncate` and `copy` go back to it as long as the object exists.
        )pbdoc")
        .def(
            "attach",
            [](py_target & self, const std::vector<std::shared_ptr<saved_state>> & states, llama_seq_id seq_id) {
                const busy_flag::scope scope(self.busy);
                self.impl.memory().rollback(seq_id).attach({ states.begin(), states.end() });
            },
            py::arg("states"), py::arg("seq_id") = 0,
            "Let `truncate` and `copy` also go back to these states, which must be of the sequence's own tokens.")
        .def(
            "n_past_min",
            [](py_target & self, llama_seq_id seq_id) {
                const busy_flag::scope scope(self.busy);
                return self.impl.memory().n_past_min(seq_id);
            },
            py::arg("seq_id") = 0,
            "Return the fewest tokens, at least 1, that `truncate` can keep without a saved state.")
        .def(
            "clear",
            [](py_target & self) {
                const busy_flag::scope scope(self.busy);
                self.impl.memory().clear();
            },
            without_gil(), "Remove all sequences, and set their cells to zero: old values may be NaN.")
        .def(
            "settle",
            [](py_target & self) {
                const busy_flag::scope scope(self.busy);
                self.impl.settle();
            },
            without_gil(),
            "Make the memory hold exactly the accepted tokens, before the context is used by other means.")
        .def(
            "n_past",
            [](py_target & self, llama_seq_id seq_id) {
                const busy_flag::scope scope(self.busy);
                return self.impl.memory().n_past(seq_id);
            },
            py::arg("seq_id") = 0, "Return the tokens that a sequence holds, rows of images included.")
        .def(
            "position",
            [](py_target & self, int32_t n_past, llama_seq_id seq_id) {
                const busy_flag::scope scope(self.busy);
                return self.impl.memory().position(seq_id, n_past);
            },
            py::arg("n_past"), py::arg("seq_id") = 0,
            "Return the position of the token after the first n_past tokens: n_past, or less if rows of images share "
            "positions.")
        .def(
            "spans",
            [](py_target & self, llama_seq_id seq_id) {
                const busy_flag::scope                             scope(self.busy);
                std::vector<std::tuple<int32_t, int32_t, int32_t>> res;
                for (const media_span & span : self.impl.memory().spans(seq_id)) {
                    res.emplace_back(span.first, span.n_tokens, span.n_pos);
                }
                return res;
            },
            py::arg("seq_id") = 0,
            "Return a sequence's images: for each the index of its first token, its rows, and the positions that these "
            "take.")
        .def(
            "set_spans",
            [](py_target & self, const std::vector<std::tuple<int32_t, int32_t, int32_t>> & values,
               llama_seq_id seq_id) {
                const busy_flag::scope  scope(self.busy);
                std::vector<media_span> spans;
                for (const auto & [first, n_tokens, n_pos] : values) {
                    spans.push_back({ first, n_tokens, n_pos });
                }
                self.impl.memory().set_spans(seq_id, std::move(spans));
            },
            py::arg("spans"), py::arg("seq_id") = 0,
            "Set the images of a sequence whose cells were written by other means, as `spans` returns them.")
        .def(
            "copy",
            [](py_target & self, llama_seq_id src, llama_seq_id dst, int32_t n_past) {
                const busy_flag::scope scope(self.busy);
                return self.impl.memory().copy(src, dst, n_past);
            },
            py::arg("src"), py::arg("dst"), py::arg("n_past"), without_gil(), R"pbdoc(
            Have sequence dst hold the first n_past positions of src and nothing else; both share the cells.

            Returns the positions that dst holds: n_past, or, if recurrent states or sliding windows cannot be cut
            there, those of the last state that was saved before it, 0 without one.
        )pbdoc")
        .def("state_get", &state_get, py::arg("seq_id"),
             "Return a sequence's cells and states as bytes, without the states that were saved of it.")
        .def("state_set", &state_set, py::arg("seq_id"), py::arg("state"), R"pbdoc(
            Restore a sequence from the bytes of `state_get`, in place of what it holds.

            Raises ContextFullError if there is no room, and ValueError for other bytes; the sequence is then empty.
        )pbdoc")
        .def(
            "n_replay",
            [](py_target & self, llama_seq_id seq_id) {
                const busy_flag::scope scope(self.busy);
                return self.impl.memory().rollback(seq_id).replay().size();
            },
            py::arg("seq_id") = 0, "Return how many accepted tokens the next batch of a sequence evaluates again.")
        .def(
            "n_state_bytes",
            [](py_target & self, llama_seq_id seq_id) {
                const busy_flag::scope scope(self.busy);
                return self.impl.memory().rollback(seq_id).n_state_bytes();
            },
            py::arg("seq_id") = 0, "Return the bytes of a state that is saved to go back; 0 = none is needed.")
        .def_property_readonly(
            "rollback_kind", [](py_target & self) { return to_string(self.impl.memory().rollback(0).kind()); }, R"pbdoc(
            How rejected tokens are taken back.

            "trim" removes their positions (attention). "snapshots" goes back to a state that llama.cpp kept (recurrent,
            n_rs_seq > 0), or, if these do not reach far enough, to a checkpoint. "checkpoint" restores the state before
            the batch and puts the accepted tokens in front of the next one, so that no pass evaluates them alone.
        )pbdoc")
        .def_property_readonly(
            "n_snapshots", [](const py_target & self) { return self.impl.memory().rollback(0).n_snapshots(); },
            "Tokens of a draft that can be rejected without a replay; None = any number.")
        .def_property_readonly(
            "n_ctx", [](const py_target & self) { return self.impl.memory().n_ctx_seq(); },
            "Positions that a sequence may have.")
        .def_property_readonly(
            "n_embd_inp", [](const py_target & self) { return self.impl.n_embd_inp(); },
            "Values of an input row of embeddings.")
        .def_property_readonly(
            "n_pos_per_row", [](const py_target & self) { return self.impl.n_pos_per_row(); },
            "Positions of an input row: 4 with M-RoPE, else 1.")
        .def_property_readonly(
            "n_ubatch", [](const py_target & self) { return self.impl.n_ubatch(); },
            "Rows that llama.cpp computes at once (n_ubatch).")
        .def_property_readonly(
            "is_pooled", [](const py_target & self) { return self.impl.memory().is_pooled(); },
            "Whether all sequences share their cells; else each has a part of its own.")
        .def_property_readonly(
            "n_seq", [](const py_target & self) { return self.impl.memory().n_seqs(); },
            "The number of the caller's sequences.")
        .def_property_readonly(
            "n_leaves_max", [](const py_target & self) { return self.impl.memory().n_leaves_max(); },
            "Leaves that a tree may have; 1 = only chains can be verified.")
        .def(
            "close",
            [](py_target & self) {
                const busy_flag::scope scope(self.busy);
                self.impl.close();
            },
            "Release the context: every later call raises.")
        .def_property_readonly(
            "tokens", [](const py_target & self) { return copy_of(self.impl.tokens()); }, "Tokens of the last batch.")
        .def_property_readonly(
            "pos", [](const py_target & self) { return copy_of(self.impl.pos()); }, "Positions of the last batch.")
        .def_property_readonly("n_vocab", [](const py_target & self) { return self.impl.n_vocab(); })
        .def_property_readonly(
            "n_batches", [](const py_target & self) { return self.impl.n_batches(); },
            "The number of batches that were begun; rows are those of the last one.")
        .def_property_readonly(
            "t_decode_us", [](const py_target & self) { return self.impl.t_decode_us(); },
            "Microseconds spent in llama_decode and llama_synchronize so far.");
}

} // namespace eagle3::python
