#include "target/target_info.h"

#include "error.h"
#include "module.h"
#include "nogil.h"
#include "target/arch_table.h"

#include <pybind11/stl.h>

namespace eagle3::python {

void register_target_info(py::module_ & m) {
    using without_gil = py::call_guard<nogil>;

    py::class_<target_info>(m, "TargetInfo", "The facts of a target's GGUF header. Made by read_target().")
        .def_readonly("path", &target_info::path)
        .def_readonly("arch", &target_info::arch)
        .def_readonly("name", &target_info::name)
        .def_readonly("n_layer", &target_info::n_layer, "layers, without those for multi-token prediction")
        .def_readonly("n_embd", &target_info::n_embd)
        .def_readonly("n_vocab", &target_info::n_vocab)
        .def_readonly("n_ctx_train", &target_info::n_ctx_train)
        .def_readonly("n_layer_nextn", &target_info::n_layer_nextn)
        .def_readonly("n_layer_gone", &target_info::n_layer_gone,
                      "layers for multi-token prediction that the header announces and the file lacks")
        .def_readonly("keys_without_block", &target_info::keys_without_block,
                      "keys for llama.cpp, as they would be without those layers; empty if it cannot be told")
        .def_readonly("nextn", &target_info::nextn)
        .def_readonly("runs_block", &target_info::runs_block, "whether llama.cpp has a graph of its block")
        .def_readonly("n_embd_nextn", &target_info::n_embd_nextn, "values of a row that its block reads")
        .def_readonly("file_size", &target_info::file_size)
        .def_readonly("boundaries", &target_info::boundaries,
                      "where hidden states can be read: 0 to n_layer, and n_layer + 1 after the final norm")
        .def_readonly("has_trunk", &target_info::has_trunk, "False: layers for multi-token prediction alone")
        .def_readonly("why_no_text", &target_info::why_no_text,
                      "why it does not generate text, so that nothing can draft for it; empty if it does")
        .def_readonly("why_no_target", &target_info::why_no_target,
                      "why no head can stand behind this model; empty if one can")
        .def("__repr__", [](const target_info & self) {
            return format("<TargetInfo %s n_layer=%d n_embd=%d n_vocab=%d path='%s'>", self.arch.c_str(), self.n_layer,
                          self.n_embd, self.n_vocab, self.path.c_str());
        });

    m.def("read_target", &read_target_info, py::arg("path"), without_gil(),
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
    m.def(
        "find_vocab_difference",
        [](const std::string & path_tgt, const std::string & path_dft) {
            return py::bytes(find_vocab_difference(path_tgt, path_dft));
        },
        py::arg("path_tgt"), py::arg("path_dft"),
        "Why the tokens of one GGUF file are not those of another: the first difference in tokenizer, number, texts or "
        "special tokens; empty if they are. Up to 128 tokens more at the end of one are padding.");
}

} // namespace eagle3::python
