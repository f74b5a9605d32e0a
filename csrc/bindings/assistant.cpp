#include "drafters/llama_context/assistant_drafter.h"
#include "drafters/llama_context/assistant_file.h"
#include "fs_path.h"
#include "module.h"
#include "nogil.h"
#include "py_drafter.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>

namespace eagle3::python {

namespace {

struct py_assistant_drafter : py_drafter {
    explicit py_assistant_drafter(std::unique_ptr<assistant_drafter> impl) : py_drafter(std::move(impl)) {}

    assistant_drafter & assistant() const { return static_cast<assistant_drafter &>(impl()); }
};

std::unique_ptr<py_assistant_drafter> make_assistant(const assistant_file & file, uintptr_t model, uintptr_t ctx,
                                                     int32_t n_ctx, int32_t n_seq_max, int32_t n_outputs_max) {
    if (ctx == 0 || model == 0) {
        throw std::invalid_argument("expected the addresses of a context and its model");
    }
    return std::make_unique<py_assistant_drafter>(std::make_unique<assistant_drafter>(
        reinterpret_cast<llama_context *>(ctx), reinterpret_cast<llama_model *>(model), file,
        assistant_params{ n_ctx, n_seq_max, n_outputs_max }));
}

py::array_t<float> last_of(const std::vector<float> & values, size_t n) {
    n = std::min(n, values.size());
    return py::array_t<float>(static_cast<py::ssize_t>(n), values.data() + (values.size() - n));
}

} // namespace

void register_assistant(py::module_ & m) {
    const auto without_gil = py::call_guard<nogil>();

    py::class_<assistant_file>(m, "AssistantFile",
                               "The facts of a Gemma 4 assistant's GGUF header. Made by read_assistant().")
        .def_property_readonly("path", path_getter(&assistant_file::path))
        .def_readonly("n_embd", &assistant_file::n_embd, "Width of the assistant's own rows.")
        .def_readonly("n_embd_tgt", &assistant_file::n_embd_tgt, "Width of the target's rows.")
        .def_readonly("n_layer", &assistant_file::n_layer)
        .def_readonly("n_vocab", &assistant_file::n_vocab, "Tokens of the target's vocabulary.")
        .def("__repr__", [](const assistant_file & f) {
            return py::str("AssistantFile(path={!r}, n_embd={}, n_embd_tgt={}, n_layer={})")
                .format(fs_path{ f.path }, f.n_embd, f.n_embd_tgt, f.n_layer);
        });
    m.def(
        "read_assistant", [](const fs_path & path) { return read_assistant(gguf_file(path)); }, py::arg("path"),
        without_gil,
        "Read the header of a Gemma 4 assistant. Raises ModelFileError with the key, what was expected and what was "
        "found.");
    m.def(
        "find_kv_difference",
        [](const fs_path & path_tgt, const fs_path & path) {
            return find_kv_difference(gguf_file(path_tgt), gguf_file(path));
        },
        py::arg("path_tgt"), py::arg("path"), without_gil,
        "Return why an assistant cannot read the K/V of a target, by their headers; empty if it can.");

    py::class_<py_assistant_drafter, py_drafter>(m, "AssistantDrafter",
                                                 "A Gemma 4 assistant, which reads the target's K/V.")
        .def(py::init(&make_assistant), py::arg("file"), py::arg("model"), py::arg("ctx"), py::kw_only(),
             py::arg("n_ctx"), py::arg("n_seq_max") = 1, py::arg("n_outputs_max") = 1, without_gil,
             R"pbdoc(
            Draft with an assistant.

            file: of read_assistant(). model, ctx: the addresses of the llama_model and llama_context made of it, which
            are freed with the drafter, also if this raises; the context's ctx_other is the target's. n_ctx: positions
            of each of the n_seq_max sequences. n_outputs_max: the context's.

            Raises ModelFileError, IncompatibleDraftError.
        )pbdoc")
        .def_property_readonly(
            "draft_logits",
            [](py_assistant_drafter & self) {
                const busy_flag::scope scope(self.busy);
                return last_of(self.assistant().logits(), self.assistant().logits().size());
            },
            "Logits of the last row that was computed to draft after it: float32 (n_vocab,).")
        .def_property_readonly(
            "hidden_state",
            [](py_assistant_drafter & self) {
                const busy_flag::scope scope(self.busy);
                return last_of(self.assistant().hidden_state(), self.assistant().n_embd_feat());
            },
            "The assistant's own hidden state of that row: float32 (n_embd_tgt,).");
}

} // namespace eagle3::python
