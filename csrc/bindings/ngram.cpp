#include "drafters/ngram/drafter.h"

#include "module.h"

#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <optional>

namespace eagle3::python {

namespace {

using tokens_t = std::vector<llama_token>;

tokens_t tokens_from(const py::list & list, size_t first) {
    tokens_t tokens;
    tokens.reserve(list.size() - first);
    for (size_t i = first; i < list.size(); ++i) {
        tokens.push_back(list[i].cast<llama_token>());
    }
    return tokens;
}

void update(ngram_drafter & self, const py::typing::List<py::int_> & tokens, size_t n_prompt, llama_seq_id seq_id) {
    size_t first = self.n_known(seq_id, n_prompt);
    for (first = first <= tokens.size() ? first : 0;; first = 0) {
        const tokens_t rest = tokens_from(tokens, first);
        if (self.update(seq_id, first, rest.data(), rest.size(), n_prompt)) {
            return;
        }
    }
}

std::vector<std::tuple<int32_t, llama_token, float, int32_t>>
propose(ngram_drafter & self, int32_t n_max, int32_t n_nodes, int32_t top_k, llama_seq_id seq_id) {
    std::vector<ngram_node> nodes;
    self.propose(seq_id, n_max, n_nodes, top_k, nodes);
    std::vector<std::tuple<int32_t, llama_token, float, int32_t>> result;
    for (const ngram_node & node : nodes) {
        result.emplace_back(node.parent, node.token, node.p, node.depth);
    }
    return result;
}

} // namespace

void register_text(py::module_ & m) {
    py::class_<ngram_store, std::shared_ptr<ngram_store>>(m, "NgramStore", R"pbdoc(
        Texts that were written, for all sequences of a process to draft from. For any number of threads.

        n_max: tokens that it holds at most, at least half of them the latest ones.
    )pbdoc")
        .def(py::init<size_t>(), py::arg("n_max") = size_t{ 1 } << 20)
        .def(
            "add", [](ngram_store & self, const tokens_t & t) { self.add(t.data(), t.data() + t.size()); },
            py::arg("tokens"), "Add a piece of a text.")
        .def("clear", &ngram_store::clear, "Remove all.")
        .def("__len__", &ngram_store::n_tokens, "Tokens that it holds.")
        .def_property_readonly("n_bytes", &ngram_store::n_bytes, "Bytes of memory.");

    py::class_<ngram_drafter, std::shared_ptr<ngram_drafter>>(m, "NgramDrafter", R"pbdoc(
        Drafts without a model: what followed, the last times, where a text ended as it ends now.

        store: where to look besides the text itself, and where what is generated goes. corpus: where to look too; nothing
        is added to it.
    )pbdoc")
        .def(py::init<int32_t, std::shared_ptr<ngram_store>, std::shared_ptr<ngram_store>>(), py::arg("n_seq_max") = 1,
             py::arg("store").none(true) = py::none(), py::arg("corpus").none(true) = py::none())
        .def("update", &update, py::arg("tokens"), py::arg("n_prompt") = 0, py::arg("seq_id") = 0, R"pbdoc(
            Have a sequence's text be these tokens, in time that depends only on what is new at its end.

            n_prompt: how many of them were not generated. A text with another n_prompt is compared from its beginning.
        )pbdoc")
        .def("begin", &ngram_drafter::begin, py::arg("seq_id") = 0, "A new text begins in this sequence.")
        .def(
            "set_rules",
            [](ngram_drafter & self, std::optional<std::shared_ptr<grammar_lookahead>> rules, llama_seq_id seq_id) {
                self.set_rules(rules.value_or(nullptr), seq_id);
            },
            py::arg("rules"), py::arg("seq_id") = 0,
            "What the sequence's next tokens must be, as long as its text is what it is; None: anything.")
        .def("propose", &propose, py::arg("n_max"), py::arg("n_nodes"), py::arg("top_k") = 1, py::arg("seq_id") = 0,
             R"pbdoc(
            The likeliest n_nodes tokens that may follow, as (parent, token, p, depth), parents first.

            n_max: length of a path. top_k: tokens after each other one. p: how sure it is, to be calibrated.
        )pbdoc")
        .def(
            "n_bytes", [](ngram_drafter & self, llama_seq_id seq_id) { return self.text(seq_id).n_bytes(); },
            py::arg("seq_id") = 0, "Memory of a sequence's text.")
        .def(
            "tokens", [](ngram_drafter & self, llama_seq_id seq_id) { return self.text(seq_id).tokens(); },
            py::arg("seq_id") = 0, "A sequence's text.");
}

} // namespace eagle3::python
