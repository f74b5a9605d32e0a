#include "target/target_info.h"

#include "error.h"
#include "module.h"
#include "nogil.h"
#include "target/arch_table.h"
#include "vocabulary.h"

#include <pybind11/stl.h>

namespace eagle3::python {

void register_target_info(py::module_ & m) {
    using without_gil = py::call_guard<nogil>;

    py::class_<target_info>(m, "TargetInfo", "The facts of a target's GGUF header. Made by read_target().")
        .def_readonly("path", &target_info::path)
        .def_readonly("arch", &target_info::arch)
        .def_readonly("name", &target_info::name)
        .def_readonly("n_layer", &target_info::n_layer, "Layers, without those for multi-token prediction.")
        .def_readonly("n_embd", &target_info::n_embd)
        .def_readonly("n_vocab", &target_info::n_vocab)
        .def_readonly("n_ctx_train", &target_info::n_ctx_train)
        .def_readonly("n_layer_nextn", &target_info::n_layer_nextn,
                      "Layers for multi-token prediction that are in the file.")
        .def_readonly("n_layer_gone", &target_info::n_layer_gone,
                      "Layers for multi-token prediction that the header announces and the file lacks.")
        .def_readonly(
            "keys_without_block", &target_info::keys_without_block,
            "Keys for llama.cpp, as they would be without those layers; empty if it needs none, or cannot be told.")
        .def_readonly("nextn", &target_info::nextn,
                      "They read the hidden state at boundary n_layer + nextn; -1: not known for this architecture.")
        .def_readonly("runs_block", &target_info::runs_block,
                      "Whether llama.cpp has a graph of its block for multi-token prediction.")
        .def_readonly("n_embd_nextn", &target_info::n_embd_nextn,
                      "Values of a row that its block for multi-token prediction reads.")
        .def_readonly("file_size", &target_info::file_size)
        .def_readonly("boundaries", &target_info::boundaries,
                      "Where hidden states can be read: 0 to n_layer, and n_layer + 1 after the final norm.")
        .def_readonly("has_trunk", &target_info::has_trunk,
                      "False for a file of layers for multi-token prediction alone.")
        .def_readonly(
            "why_no_text", &target_info::why_no_text,
            "Why it does not generate text, so that nothing can draft for it, nor it for others; empty if it does.")
        .def_readonly("why_no_target", &target_info::why_no_target,
                      "Why no head can stand after this model; empty if one can.")
        .def("__repr__", [](const target_info & self) {
            return format("<TargetInfo %s n_layer=%d n_embd=%d n_vocab=%d path='%s'>", self.arch.c_str(), self.n_layer,
                          self.n_embd, self.n_vocab, self.path.c_str());
        });

    m.def("read_target", &read_target_info, py::arg("path"), without_gil(),
          "Read the header of a target's GGUF file, or raise ModelFileError.");

    m.def("find_other_kind", &find_other_kind, py::arg("path"), without_gil(),
          "What a GGUF file is that holds no model, and what takes it; empty for models and drafters.");

    m.def(
        "why_no_target",
        [](const std::string & arch) {
            const char * why = why_no_target(arch);
            return std::string(why ? why : "");
        },
        py::arg("arch"), "Why no head can stand after models of an architecture; empty if one can.");

    py::class_<vocab_difference>(m, "VocabDifference",
                                 "How the tokens of a drafter's file differ from its target's. Made by "
                                 "compare_vocabularies().")
        .def_readonly("model_tgt", &vocab_difference::model_tgt, "Kind of tokenizer; empty if the file has none.")
        .def_readonly("model_dft", &vocab_difference::model_dft)
        .def_readonly("n_tgt", &vocab_difference::n_tgt, "Tokens; 0 if that is not known.")
        .def_readonly("n_dft", &vocab_difference::n_dft)
        .def_readonly("others", &vocab_difference::others,
                      "Tokens that both have, with other texts, in ascending order.")
        .def_property_readonly(
            "text_tgt", [](const vocab_difference & self) { return py::bytes(self.text_tgt); },
            "Bytes of the first of `others`.")
        .def_property_readonly("text_dft", [](const vocab_difference & self) { return py::bytes(self.text_dft); })
        .def_readonly("n_more", &vocab_difference::n_more, "Tokens at the end of one of both, without padding.")
        .def_readonly("flags", &vocab_difference::flags, "How BOS and EOS differ, as sentences.");

    m.def("compare_vocabularies", &compare_vocabularies, py::arg("path_tgt"), py::arg("path_dft"),
          py::arg("n_vocab_tgt") = 0, py::arg("n_vocab_dft") = 0, without_gil(),
          R"pbdoc(
            Compare the tokens of a target and of its drafter.

            n_vocab_tgt, n_vocab_dft: tokens of files without texts; 0 if that is not known.
        )pbdoc");
    m.def("has_nearly", &has_nearly, py::arg("n_dft"), py::arg("n_tgt"),
          "Whether two numbers of tokens differ by padding and a few tokens at the end alone.");
}

} // namespace eagle3::python
