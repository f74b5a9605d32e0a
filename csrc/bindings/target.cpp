#include "target/target.h"

#include "busy_flag.h"
#include "error.h"
#include "module.h"
#include "target/arch_table.h"
#include "target/graph_check.h"
#include "target/target_info.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstring>

namespace eagle3::python {

namespace {

using tokens_t = std::vector<llama_token>;
using pos_t    = std::vector<llama_pos>;
using seqs_t   = std::vector<std::vector<llama_seq_id>>;

// a target and the flag that keeps a second thread out
struct py_target {
    py_target(uintptr_t ctx, uintptr_t model, feature_tap * tap) :
        impl(reinterpret_cast<llama_context *>(ctx), reinterpret_cast<const llama_model *>(model), tap) {
        check_graphs(reinterpret_cast<llama_context *>(ctx));
    }

    target    impl;
    busy_flag busy;
};

void decode(py_target & self, const tokens_t & tokens, int32_t n_past, bool logits_all, llama_seq_id seq_id) {
    const busy_flag::scope scope(self.busy);
    self.impl.decode(tokens, n_past, logits_all, seq_id);
}

void decode_parts(py_target & self, const std::vector<std::tuple<llama_seq_id, int32_t, tokens_t>> & parts,
                  bool logits_all) {
    const busy_flag::scope  scope(self.busy);
    std::vector<batch_part> impl_parts;
    for (const auto & [seq_id, n_past, tokens] : parts) {
        impl_parts.push_back({ seq_id, n_past, tokens });
    }
    self.impl.decode_parts(impl_parts, logits_all);
}

void decode_tree(py_target & self, const tokens_t & tokens, const std::vector<int32_t> & parents, int32_t n_past) {
    const busy_flag::scope scope(self.busy);
    self.impl.decode_tree(tokens, parents, n_past);
}

// one sequence of a target
struct py_round {
    py_round(py_target & target, llama_seq_id seq_id) : target(target), seq_id(seq_id) { target.impl.round(seq_id); }

    // run a function of the round while nobody else uses the target
    template <typename F>
    auto locked(F f) const {
        const busy_flag::scope scope(target.busy);
        return f(target.impl.round(seq_id));
    }

    py_target &  target;
    llama_seq_id seq_id;
};

void decode_batch(py_target & self, const tokens_t & tokens, const pos_t & pos, const seqs_t & seq_ids,
                  const std::vector<bool> & logits) {
    const busy_flag::scope scope(self.busy);
    self.impl.decode_batch(tokens, pos, seq_ids, logits);
}

llama_token sample(py_target & self, uintptr_t sampler, int32_t row, int32_t n_best) {
    const busy_flag::scope scope(self.busy);
    return self.impl.sample(reinterpret_cast<llama_sampler *>(sampler), row, n_best);
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
    using nogil = py::call_guard<py::gil_scoped_release>;

    py::class_<py_target>(m, "Target", R"pbdoc(
        The target's context: decode, sample row by row, take back.

        `ctx` and `model` are addresses from llama-cpp-python and stay the caller's; call `close()` before freeing them.
        One thread at a time: a second one gets BusyError.
    )pbdoc")
        .def(py::init<uintptr_t, uintptr_t, feature_tap *>(), py::arg("ctx"), py::arg("model"),
             py::arg("tap") = py::none(), py::keep_alive<1, 4>())
        .def("decode", &decode, py::arg("tokens"), py::arg("n_past"), py::arg("logits_all") = true,
             py::arg("seq_id") = 0, nogil(), R"pbdoc(
            Forget positions from `n_past` on and evaluate `tokens` there as one batch.

            Logits are kept for all tokens, or only for the last one. If it raises, the memory ends at `n_past`, or where
            it can go back to before that (see `n_past`).
        )pbdoc")
        .def("decode_parts", &decode_parts, py::arg("parts"), py::arg("logits_all") = true, nogil(), R"pbdoc(
            The same for several sequences in one batch: `parts` are tuples (seq_id, n_past, tokens).

            Rows are numbered through all parts. Without `logits_all` the last token of each part has logits.
        )pbdoc")
        .def(
            "set_device_argmax",
            [](py_target & self, int32_t n_outputs) {
                const busy_flag::scope scope(self.busy);
                self.impl.set_device_argmax(n_outputs);
            },
            py::arg("n_outputs"), nogil(), R"pbdoc(
            Let the target's device take the argmax of each row; `logits` and `sample` then raise, the rows stay there.

            n_outputs: rows with logits that a sequence may have in a batch, at most the context's
            n_outputs_max_per_seq. 0: bring the rows here again.
        )pbdoc")
        .def_property_readonly(
            "logits_are_remote", [](const py_target & self) { return self.impl.logits_are_remote(); },
            "whether logits are computed on a device whose memory the host cannot read")
        .def("decode_tree", &decode_tree, py::arg("tokens"), py::arg("parents"), py::arg("n_past"), nogil(), R"pbdoc(
            Evaluate a tree from position `n_past` of sequence 0 on, as one batch: token i follows token parents[i] < i.

            The first token is the root; its parent is not looked at. All rows have logits. Call `keep` afterwards.
        )pbdoc")
        .def(
            "keep",
            [](py_target & self, const std::vector<int32_t> & rows) {
                const busy_flag::scope scope(self.busy);
                self.impl.keep(rows);
            },
            py::arg("rows"),
            "After decode_tree: keep the path through these rows, 0 first, and forget all other nodes.")
        .def("decode_batch", &decode_batch, py::arg("tokens"), py::arg("pos"), py::arg("seq_ids"), py::arg("logits"),
             nogil(), "The general form: one batch of any sequences. Nothing is forgotten before.")
        .def("sample", &sample, py::arg("sampler"), py::arg("row"), py::arg("n_best") = 0, nogil(), R"pbdoc(
            Sample from a row of the last batch with a llama_sampler (its address), and let it accept the token.

            n_best > 0: the sampler looks at that many of the best tokens only, as one does that begins with top-k.
        )pbdoc")
        .def("argmax", &argmax, py::arg("row"), nogil(), "The first of the most probable tokens of a row.")
        .def("logits", &logits, py::arg("row"), "Copy of the logits of a row: float32, (n_vocab,).")
        .def("logits_all", &logits_all, py::arg("n"), "Copy of the logits of the first n rows: float32, (n, n_vocab).")
        .def(
            "truncate",
            [](py_target & self, int32_t n_past, llama_seq_id seq_id) {
                const busy_flag::scope scope(self.busy);
                return self.impl.truncate(n_past, seq_id);
            },
            py::arg("n_past"), py::arg("seq_id") = 0, R"pbdoc(
            Forget positions from `n_past` on. Returns the position from which tokens must be decoded again.

            That is n_past, or less where the memory cannot go back there: a saved state (`save`), or 0.
        )pbdoc")
        .def(
            "save",
            [](py_target & self, llama_seq_id seq_id) {
                const busy_flag::scope scope(self.busy);
                self.impl.round(seq_id).save();
            },
            py::arg("seq_id") = 0,
            "Keep the present state for `truncate`, if this memory needs that to go back. The last few are kept.")
        .def(
            "settle",
            [](py_target & self) {
                const busy_flag::scope scope(self.busy);
                self.impl.settle();
            },
            nogil(), "Make the memory hold exactly the accepted tokens, for whoever reads it behind our back.")
        .def(
            "n_past",
            [](py_target & self, llama_seq_id seq_id) {
                const busy_flag::scope scope(self.busy);
                return self.impl.round(seq_id).n_past();
            },
            py::arg("seq_id") = 0, "Where a sequence ends.")
        .def_property_readonly(
            "holds_tree", [](const py_target & self) { return self.impl.holds_tree(); },
            "whether a tree was decoded of which no path was kept yet")
        .def_property_readonly(
            "n_leaves_max", [](const py_target & self) { return self.impl.n_leaves_max(); },
            "leaves that a tree may have; 1 where only chains can be verified")
        .def(
            "close",
            [](py_target & self) {
                const busy_flag::scope scope(self.busy);
                self.impl.close();
            },
            "Let go of the context: every later call raises.")
        .def_property_readonly(
            "tokens", [](const py_target & self) { return copy_of(self.impl.tokens()); }, "tokens of the last batch")
        .def_property_readonly(
            "pos", [](const py_target & self) { return copy_of(self.impl.pos()); }, "positions of the last batch")
        .def_property_readonly("n_vocab", [](const py_target & self) { return self.impl.n_vocab(); })
        .def_property_readonly(
            "t_decode_us", [](const py_target & self) { return self.impl.t_decode_us(); },
            "microseconds in llama_decode and synchronize");

    py::class_<py_round>(m, "RecurrentRound", R"pbdoc(
        Takes tokens of one sequence back: `begin`, decode, `commit`.

        `kind` says how: "trim" forgets positions (attention), "snapshots" goes back to a state that llama.cpp kept
        (recurrent, n_rs_seq > 0), "checkpoint" restores the state before the batch and puts the accepted tokens in front
        of the next one, so that there is never a pass for them alone.
    )pbdoc")
        .def(py::init<py_target &, llama_seq_id>(), py::arg("target"), py::arg("seq_id") = 0, py::keep_alive<1, 2>())
        .def(
            "begin",
            [](const py_round & self, int32_t n_tokens) {
                self.locked([&](recurrent_round & round) { round.begin(n_tokens); });
            },
            py::arg("n_tokens"), nogil(),
            "A batch of n_tokens is about to be decoded behind the sequence and may be taken back in parts.")
        .def(
            "commit",
            [](const py_round & self, int32_t n_accepted) {
                self.locked([&](recurrent_round & round) { round.commit(n_accepted); });
            },
            py::arg("n_accepted"), nogil(), "Keep the first n_accepted tokens of the batch.")
        .def(
            "abort", [](const py_round & self) { self.locked([](recurrent_round & round) { round.abort(); }); },
            nogil(),
            R"pbdoc(
            Go back to where `begin` was called.

            Snapshots do not reach back before a decoded batch: the sequence is then forgotten altogether
            (`Target.n_past(seq_id)` is 0).
        )pbdoc")
        .def_property_readonly(
            "is_open",
            [](const py_round & self) { return self.locked([](recurrent_round & round) { return round.open(); }); },
            "whether a batch was announced that was neither committed nor aborted")
        .def_property_readonly(
            "kind",
            [](const py_round & self) {
                return self.locked([](recurrent_round & round) { return to_string(round.kind()); });
            },
            "trim, snapshots or checkpoint")
        .def_property_readonly(
            "n_state_bytes",
            [](const py_round & self) {
                return self.locked([](recurrent_round & round) { return round.n_state_bytes(); });
            },
            "bytes of one saved state of the sequence as it is now; 0 where none is needed")
        .def_property_readonly(
            "n_replay",
            [](const py_round & self) {
                return self.locked([](recurrent_round & round) { return round.replay().size(); });
            },
            "accepted tokens that the next batch evaluates once more");

    py::class_<target_info>(m, "TargetInfo", "What the header of a target's GGUF file says. Made by read_target().")
        .def_readonly("path", &target_info::path)
        .def_readonly("arch", &target_info::arch)
        .def_readonly("name", &target_info::name)
        .def_readonly("n_layer", &target_info::n_layer, "layers, without those for multi-token prediction")
        .def_readonly("n_embd", &target_info::n_embd)
        .def_readonly("n_vocab", &target_info::n_vocab)
        .def_readonly("n_ctx_train", &target_info::n_ctx_train)
        .def_readonly("file_size", &target_info::file_size)
        .def_readonly("boundaries", &target_info::boundaries,
                      "where hidden states can be read: 0 to n_layer, and n_layer + 1 after the final norm")
        .def_readonly("why_no_target", &target_info::why_no_target,
                      "why no head can stand behind this model; empty if one can")
        .def("__repr__", [](const target_info & self) {
            return format("<TargetInfo %s n_layer=%d n_embd=%d n_vocab=%d path='%s'>", self.arch.c_str(), self.n_layer,
                          self.n_embd, self.n_vocab, self.path.c_str());
        });

    m.def("read_target", &read_target_info, py::arg("path"), nogil(),
          "Read the header of a target's GGUF file, or raise ModelFileError.");

    m.def(
        "why_no_target",
        [](const std::string & arch) {
            const char * why = why_no_target(arch);
            return std::string(why ? why : "");
        },
        py::arg("arch"), "Why no head can stand behind models of an architecture; empty if one can.");

    m.def(
        "compare_tokens",
        [](const std::string & path_a, const std::string & path_b) {
            const token_difference diff = compare_tokens(path_a, path_b);
            return py::make_tuple(diff.n_different, diff.first, py::bytes(diff.text_a), py::bytes(diff.text_b));
        },
        py::arg("path_a"), py::arg("path_b"),
        "Compare the tokenizers of two GGUF files: how many tokens differ, and the first one that does with its texts. "
        "Files without a tokenizer, or with one of another size, differ in nothing here.");
}

} // namespace eagle3::python
