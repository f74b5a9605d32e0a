#include "drafters/ngram/drafter.h"

#include "module.h"
#include "nogil.h"

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
propose_nodes(ngram_drafter & self, int32_t n_max, int32_t n_nodes, int32_t top_k, llama_seq_id seq_id) {
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
            Texts from which all sequences of a process may draft n-grams. Any number of threads may use it.

            n_max: tokens that it holds at most; at least the latest n_max / 2 are kept.
        )pbdoc")
        .def(py::init<size_t>(), py::arg("n_max") = size_t{ 1 } << 20)
        .def(
            "add", [](ngram_store & self, const tokens_t & t) { self.add(t.data(), t.data() + t.size()); },
            py::arg("tokens"), "Add a piece of a text.")
        .def("merge", &ngram_store::merge, py::call_guard<nogil>(),
             "Make searches as fast as they can be, after many texts were added.")
        .def("clear", &ngram_store::clear, "Remove all texts.")
        .def("__len__", &ngram_store::n_tokens, "Return the number of tokens that it holds.")
        .def_property_readonly("n_bytes", &ngram_store::n_bytes, "Bytes of memory that it takes.");

    py::class_<ngram_drafter, std::shared_ptr<ngram_drafter>>(m, "NgramDrafter", R"pbdoc(
            Drafts without a model: proposes the tokens that followed where a text ended before as it ends now.

            store: texts that are searched besides the sequence's own; generated tokens are added to it. corpus: further
            texts that are searched; nothing is added to it.
        )pbdoc")
        .def(py::init<int32_t, std::shared_ptr<ngram_store>, std::shared_ptr<ngram_store>>(), py::arg("n_seq_max") = 1,
             py::arg("store").none(true) = py::none(), py::arg("corpus").none(true) = py::none())
        .def("update", &update, py::arg("tokens"), py::arg("n_prompt") = 0, py::arg("seq_id") = 0, R"pbdoc(
            Set a sequence's text to these tokens, in time that depends only on the number of new tokens at its end.

            n_prompt: how many of them were not generated. A text with another n_prompt than before is compared from its
            beginning.
        )pbdoc")
        .def("begin", &ngram_drafter::begin, py::arg("seq_id") = 0, "Begin a new text in this sequence.")
        .def(
            "set_rules",
            [](ngram_drafter & self, std::optional<std::shared_ptr<grammar_lookahead>> rules, llama_seq_id seq_id) {
                self.set_rules(rules.value_or(nullptr), seq_id);
            },
            py::arg("rules"), py::arg("seq_id") = 0,
            "Set the grammar that the sequence's next tokens must follow, until its text changes; None = any token may "
            "come.")
        .def(
            "set_forced",
            [](ngram_drafter & self, const std::vector<std::pair<llama_token, float>> & tokens, llama_seq_id seq_id) {
                std::vector<draft_candidate> forced;
                for (const auto & [token, p] : tokens) {
                    forced.push_back({ token, p });
                }
                self.set_forced(std::move(forced), seq_id);
            },
            py::arg("tokens"), py::arg("seq_id") = 0,
            "Set tokens that are known to follow, with their probabilities, until the sequence's text changes: they "
            "are proposed, and what follows them.")
        .def("propose", &propose_nodes, py::arg("n_max"), py::arg("n_nodes"), py::arg("top_k") = 1,
             py::arg("seq_id") = 0,
             R"pbdoc(
            Return the n_nodes most likely tokens that may follow, as (parent, token, p, depth), parents before their
            children.

            n_max: tokens of a path, at most. top_k: tokens after each token, at most. p is a confidence, to be
            calibrated.
        )pbdoc")
        .def(
            "n_bytes", [](ngram_drafter & self, llama_seq_id seq_id) { return self.text(seq_id).n_bytes(); },
            py::arg("seq_id") = 0, "Return the bytes of memory that a sequence's text takes.")
        .def(
            "tokens", [](ngram_drafter & self, llama_seq_id seq_id) { return self.text(seq_id).tokens(); },
            py::arg("seq_id") = 0, "Return the tokens of a sequence's text.");
}

} // namespace eagle3::python
