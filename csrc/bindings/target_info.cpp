#include "target/target_info.h"

#include "error.h"
#include "file_text.h"
#include "fs_path.h"
#include "module.h"
#include "nogil.h"
#include "target/arch_table.h"
#include "vocabulary.h"

#include <pybind11/stl.h>

namespace eagle3::python {

void register_target_info(py::module_ & m) {
    using without_gil = py::call_guard<nogil>;

    py::class_<target_info>(m, "TargetInfo", "The facts of a target's GGUF header. Made by read_target().")
        .def_property_readonly("path", path_getter(&target_info::path))
        .def_property_readonly("arch", text_getter(&target_info::arch))
        .def_property_readonly("name", text_getter(&target_info::name))
        .def_readonly("n_layer", &target_info::n_layer, "Layers, without those for multi-token prediction.")
        .def_readonly("n_embd", &target_info::n_embd)
        .def_readonly("n_vocab", &target_info::n_vocab)
        .def_readonly("n_ctx_train", &target_info::n_ctx_train)
        .def_readonly("n_layer_nextn", &target_info::n_layer_nextn,
                      "Layers for multi-token prediction that are in the file.")
        .def_readonly("n_layer_gone", &target_info::n_layer_gone,
                      "Layers for multi-token prediction that the header announces and the file lacks.")
        .def_readonly("keys_without_block", &target_info::keys_without_block,
                      "Overrides of keys with which llama.cpp loads the file without the missing layers "
                      "(`n_layer_gone`); empty = none are needed, or they would not suffice.")
        .def_readonly("unknown_ids", &target_info::unknown_ids,
                      "Keys of special tokens whose ids the vocabulary does not have, with these ids.")
        .def_readonly("nextn", &target_info::nextn,
                      "The block for multi-token prediction reads boundary n_layer + nextn; -1 = not known for this "
                      "architecture.")
        .def_readonly("runs_block", &target_info::runs_block,
                      "Whether llama.cpp can run the block for multi-token prediction.")
        .def_readonly("n_embd_nextn", &target_info::n_embd_nextn,
                      "Values of a row that the target's block for multi-token prediction reads.")
        .def_readonly("file_size", &target_info::file_size)
        .def_readonly(
            "boundaries", &target_info::boundaries,
            "The boundaries at which hidden states can be read: of 0 to n_layer, and n_layer + 1 after the final norm.")
        .def_readonly(
            "has_trunk", &target_info::has_trunk,
            "Whether the file has the model's own layers; False = it has layers for multi-token prediction alone.")
        .def_readonly(
            "why_no_text", &target_info::why_no_text,
            "Why the model does not generate text, so that it can be neither target nor drafter; empty if it does.")
        .def_readonly("why_no_target", &target_info::why_no_target,
                      "Why no head can draft for this model; empty if one can.")
        .def("__repr__", [](const target_info & self) {
            return py::str("<TargetInfo {} n_layer={} n_embd={} n_vocab={} path={!r}>")
                .format(text_of(self.arch), self.n_layer, self.n_embd, self.n_vocab, fs_path{ self.path });
        });

    m.def(
        "read_target", [](const fs_path & path) { return read_target_info(path); }, py::arg("path"), without_gil(),
        "Read the header of a target's GGUF file, or raise ModelFileError.");

    m.def(
        "find_other_kind", [](const fs_path & path) { return find_other_kind(path); }, py::arg("path"), without_gil(),
        "Return what a GGUF file without a model is, and which argument takes it; empty for models and drafters.");

    m.def(
        "why_no_target",
        [](const std::string & arch) {
            const char * why = why_no_target(arch);
            return std::string(why ? why : "");
        },
        py::arg("arch"), "Return why no head can draft for models of an architecture; empty if one can.");

    py::class_<vocab_difference>(m, "VocabDifference",
                                 "How the tokens of a drafter's file differ from its target's. Made by "
                                 "compare_vocabularies().")
        .def_readonly("model_tgt", &vocab_difference::model_tgt, "The kind of tokenizer; empty = the file has none.")
        .def_readonly("model_dft", &vocab_difference::model_dft)
        .def_readonly("n_tgt", &vocab_difference::n_tgt, "The number of tokens; 0 = not known.")
        .def_readonly("n_dft", &vocab_difference::n_dft)
        .def_readonly("others", &vocab_difference::others, "Tokens that both have with different texts, ascending.")
        .def_property_readonly(
            "text_tgt", [](const vocab_difference & self) { return py::bytes(self.text_tgt); },
            "The text of the first of `others`.")
        .def_property_readonly("text_dft", [](const vocab_difference & self) { return py::bytes(self.text_dft); })
        .def_readonly("n_more", &vocab_difference::n_more,
                      "Tokens at the end that only one of the two has, without padding.")
        .def_readonly("flags", &vocab_difference::flags, "Sentences that say how BOS and EOS differ.");

    m.def(
        "compare_vocabularies",
        [](const fs_path & path_tgt, const fs_path & path_dft, int32_t n_vocab_tgt, int32_t n_vocab_dft) {
            return compare_vocabularies(path_tgt, path_dft, n_vocab_tgt, n_vocab_dft);
        },
        py::arg("path_tgt"), py::arg("path_dft"), py::arg("n_vocab_tgt") = 0, py::arg("n_vocab_dft") = 0, without_gil(),
        R"pbdoc(
            Compare the tokens of a target and of its drafter.

            n_vocab_tgt, n_vocab_dft: tokens of files without texts; 0 if that is not known.
        )pbdoc");
    m.def("has_nearly", &has_nearly, py::arg("n_dft"), py::arg("n_tgt"),
          "Whether two numbers of tokens differ only by padding and a few tokens at the end.");
}

} // namespace eagle3::python
