#include "drafters/grammar/drafter.h"

#include "module.h"
#include "nogil.h"

#include <pybind11/stl.h>

namespace eagle3::python {

namespace {

std::vector<std::pair<llama_token, float>> propose(grammar_drafter & self, size_t n_max) {
    std::vector<std::pair<llama_token, float>> found;
    for (const draft_candidate & c : self.propose(n_max)) {
        found.emplace_back(c.id, c.p);
    }
    return found;
}

} // namespace

void register_grammar(py::module_ & m) {
    const auto without_gil = py::call_guard<nogil>(); // a large grammar may take long

    py::class_<grammar_drafter>(m, "GrammarDrafter", R"pbdoc(
            Drafts what a grammar forces: text after which nothing else may come, or, besides white space, only this.

            vocab: the address of the llama_vocab. grammar: that of a `grammar_sampler`. Both must outlive this object.
        )pbdoc")
        .def(py::init([](uintptr_t vocab, uintptr_t grammar) {
                 return std::make_unique<grammar_drafter>(reinterpret_cast<const llama_vocab *>(vocab),
                                                          reinterpret_cast<const llama_sampler *>(grammar));
             }),
             py::arg("vocab"), py::arg("grammar"))
        .def("read", &grammar_drafter::read, py::arg("tokens"), without_gil,
             "Read the text's next tokens, which the grammar has accepted: their white space is what is guessed.")
        .def("reset", &grammar_drafter::reset, "Forget the text.")
        .def(
            "forced",
            [](const grammar_drafter & self) {
                const forced_text found = self.forced();
                return std::make_pair(py::bytes(found.text), found.p);
            },
            "Return the text that comes next, and how likely each of its bytes is after those before; 1: it is forced.")
        .def("propose", &propose, py::arg("n_max"), without_gil,
             "Return that text as the tokenizer spells it, at most n_max tokens, with the probability of each.");
}

} // namespace eagle3::python
