#include "drafters/llama_context/dflash_drafter.h"
#include "fs_path.h"
#include "module.h"
#include "nogil.h"
#include "py_drafter.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

namespace eagle3::python {

namespace {

struct py_dflash_drafter : py_drafter {
    explicit py_dflash_drafter(std::unique_ptr<dflash_drafter> impl) : py_drafter(std::move(impl)) {}

    dflash_drafter & dflash() const { return static_cast<dflash_drafter &>(impl()); }
};

std::unique_ptr<py_dflash_drafter> make_dflash(const dflash_hparams & hparams, uintptr_t model, uintptr_t ctx,
                                               uintptr_t model_tgt, int32_t n_ctx, int32_t n_seq_max) {
    if (model == 0 || ctx == 0 || model_tgt == 0) {
        throw std::invalid_argument("expected the addresses of the drafter's model and context, and the target's");
    }
    return std::make_unique<py_dflash_drafter>(std::make_unique<dflash_drafter>(
        reinterpret_cast<llama_model *>(model), reinterpret_cast<llama_context *>(ctx),
        reinterpret_cast<const llama_model *>(model_tgt), hparams, dflash_params{ n_ctx, n_seq_max }));
}

} // namespace

void register_dflash(py::module_ & m) {
    const auto without_gil = py::call_guard<nogil>();

    py::class_<dflash_hparams>(m, "DflashFile",
                               "The facts of a block drafter's GGUF header. Read-only; made by read_dflash().")
        .def_property_readonly("path", path_getter(&dflash_hparams::path))
        .def_property_readonly("kind", &dflash_hparams::kind_name, "The kind of drafter: dflash, dspark or dflash2.")
        .def_readonly("boundaries", &dflash_hparams::boundaries, "The target's boundaries that a row is made of.")
        .def_readonly("n_embd", &dflash_hparams::n_embd, "Width of the rows of the drafter and of its target.")
        .def_readonly("n_layer", &dflash_hparams::n_layer)
        .def_readonly("n_vocab", &dflash_hparams::n_vocab, "Tokens of the target's vocabulary.")
        .def_readonly("n_vocab_dft", &dflash_hparams::n_vocab_dft,
                      "Size of the draft vocabulary; 0 = the target's vocabulary.")
        .def_readonly("block_size", &dflash_hparams::block_size, "Rows of a block, at most.")
        .def_readonly("mask_token", &dflash_hparams::mask_token)
        .def_readonly("sliding_window", &dflash_hparams::sliding_window,
                      "Positions that a row sees in layers with a sliding window; 0 = there are none.")
        .def_readonly("is_causal", &dflash_hparams::is_causal,
                      "Whether a row of a block attends only to rows before it.")
        .def_property_readonly("n_draft_max", &dflash_hparams::n_draft_max, "Tokens of a draft, at most.")
        .def("__repr__", [](const dflash_hparams & h) {
            return py::str("DflashFile(path={!r}, kind={!r}, boundaries={}, n_embd={}, n_layer={}, block_size={})")
                .format(fs_path{ h.path }, h.kind_name(), h.boundaries, h.n_embd, h.n_layer, h.block_size);
        });
    m.def(
        "read_dflash", [](const fs_path & path) { return read_dflash(gguf_file(path)); }, py::arg("path"), without_gil,
        "Read the header of a block drafter. Raises ModelFileError with the key or tensor, what was expected and what "
        "was found.");

    py::class_<py_dflash_drafter, py_drafter>(m, "DflashDrafter", "A block drafter: a model and a context of its own.")
        .def(py::init(&make_dflash), py::arg("file"), py::arg("model"), py::arg("ctx"), py::arg("model_tgt"),
             py::kw_only(), py::arg("n_ctx"), py::arg("n_seq_max") = 1, without_gil,
             R"pbdoc(
            Draft with a block drafter.

            file: of read_dflash(). model, ctx: the addresses of the llama_model and llama_context made of it, which are
            freed with the drafter, also if this raises. model_tgt: the target's llama_model, whose embedding and output
            it may use. n_ctx: positions of each of the n_seq_max sequences; the context has room for one more block.

            Raises ModelFileError.
        )pbdoc")
        .def_property_readonly("file", [](const py_dflash_drafter & self) { return self.dflash().hparams(); })
        .def_property_readonly(
            "block_logits",
            [](py_dflash_drafter & self) {
                const busy_flag::scope   scope(self.busy);
                const std::vector<float> logits = self.dflash().block_logits();
                const py::ssize_t        n      = self.dflash().hparams().n_vocab;
                return py::array_t<float>({ static_cast<py::ssize_t>(logits.size()) / n, n }, logits.data());
            },
            "Logits of the last pass over blocks, before the final scale: float32 (n_rows, n_vocab).");
}

} // namespace eagle3::python
