#include "drafters/llama_context/simple_drafter.h"

#include "fs_path.h"
#include "module.h"
#include "nogil.h"
#include "py_drafter.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

namespace eagle3::python {

namespace {

struct py_simple_drafter : py_drafter {
    explicit py_simple_drafter(std::unique_ptr<simple_drafter> impl) : py_drafter(std::move(impl)) {}

    simple_drafter & simple() const { return static_cast<simple_drafter &>(impl()); }
};

std::unique_ptr<py_simple_drafter> make_simple(uintptr_t ctx, uintptr_t model, const fs_path & path,
                                               int32_t n_vocab_tgt, int32_t n_ctx, int32_t n_pos_max, int32_t n_seq_max,
                                               int32_t n_outputs_max) {
    if (ctx == 0 || model == 0) {
        throw std::invalid_argument("expected the addresses of a context and its model");
    }
    return std::make_unique<py_simple_drafter>(std::make_unique<simple_drafter>(
        reinterpret_cast<llama_context *>(ctx), reinterpret_cast<llama_model *>(model), path,
        simple_params{ n_vocab_tgt, n_ctx, n_pos_max > 0 ? n_pos_max : n_ctx, n_seq_max, n_outputs_max }));
}

} // namespace

void register_simple_drafter(py::module_ & m) {
    py::class_<py_simple_drafter, py_drafter>(m, "SimpleDrafter", "A small model of the target's vocabulary.")
        .def(py::init(&make_simple), py::arg("ctx"), py::arg("model"), py::arg("path"), py::kw_only(),
             py::arg("n_vocab_tgt"), py::arg("n_ctx"), py::arg("n_pos_max") = 0, py::arg("n_seq_max") = 1,
             py::arg("n_outputs_max") = 1, py::call_guard<nogil>(),
             R"pbdoc(
            Draft with a small model.

            ctx, model: the addresses of a llama_context and its llama_model, which are freed with the drafter, also if
            this raises. path: the model's file. n_vocab_tgt: tokens of the target. n_ctx: positions of each of the
            n_seq_max sequences; the context's other sequence ids are for branches of trees, or for drafts after a
            recurrent state. n_pos_max: positions that the model reads, after which it drafts nothing; 0 = all.
            n_outputs_max: the context's.

            Raises ModelFileError.
        )pbdoc")
        .def_property_readonly(
            "draft_logits",
            [](py_simple_drafter & self) {
                const busy_flag::scope scope(self.busy);
                const auto &           logits = self.simple().logits();
                return py::array_t<float>(static_cast<py::ssize_t>(logits.size()), logits.data());
            },
            "Logits of the last row that was computed to draft after it, of the tokens that both models have: "
            "float32.");
}

} // namespace eagle3::python
