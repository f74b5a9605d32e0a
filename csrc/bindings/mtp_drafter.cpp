#include "drafters/llama_context/mtp_drafter.h"

#include "fs_path.h"
#include "module.h"
#include "nogil.h"
#include "py_drafter.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

namespace eagle3::python {

namespace {

struct py_mtp_drafter : py_drafter {
    explicit py_mtp_drafter(std::unique_ptr<mtp_drafter> impl) : py_drafter(std::move(impl)) {}

    mtp_drafter & mtp() const { return static_cast<mtp_drafter &>(impl()); }
};

std::unique_ptr<py_mtp_drafter> make_mtp(uintptr_t ctx, const fs_path & path, uintptr_t model,
                                         const std::vector<uintptr_t> & further, int32_t n_ctx, int32_t n_seq_max,
                                         int32_t n_outputs_max) {
    if (ctx == 0) {
        throw std::invalid_argument("expected the address of an MTP context");
    }
    std::vector<draft_context> blocks;
    for (const uintptr_t of_block : further) {
        blocks.emplace_back(reinterpret_cast<llama_context *>(of_block), nullptr);
    }
    return std::make_unique<py_mtp_drafter>(
        std::make_unique<mtp_drafter>(reinterpret_cast<llama_context *>(ctx), reinterpret_cast<llama_model *>(model),
                                      path, mtp_params{ n_ctx, n_seq_max, n_outputs_max }, std::move(blocks)));
}

py::array_t<float> to_array(const std::vector<float> & values, size_t n) {
    return py::array_t<float>(static_cast<py::ssize_t>(n), values.data() + (values.size() - n));
}

} // namespace

void register_mtp_drafter(py::module_ & m) {
    py::class_<py_mtp_drafter, py_drafter>(m, "MtpDrafter", "The block for multi-token prediction.")
        .def(py::init(&make_mtp), py::arg("ctx"), py::arg("path"), py::kw_only(), py::arg("model") = 0,
             py::arg("further") = std::vector<uintptr_t>(), py::arg("n_ctx"), py::arg("n_seq_max") = 1,
             py::arg("n_outputs_max") = 1, py::call_guard<nogil>(),
             R"pbdoc(
            Draft with a block on a context.

            ctx: the address of a llama_context of type MTP. model: the llama_model of a block in a file of its own.
            further: contexts of chained blocks after the first one. All of these are freed with the drafter, also if
            this raises. path: the file that has the block. n_ctx: positions of each of the n_seq_max sequences; the
            context's other sequence ids are for branches of trees. n_outputs_max: the context's.

            Raises ModelFileError, IncompatibleDraftError.
        )pbdoc")
        .def_property_readonly(
            "draft_logits",
            [](py_mtp_drafter & self) {
                const busy_flag::scope scope(self.busy);
                return to_array(self.mtp().logits(), self.mtp().logits().size());
            },
            "Logits of the last row that was computed to draft after it: float32 (n_vocab,).")
        .def_property_readonly(
            "hidden_state",
            [](py_mtp_drafter & self) {
                const busy_flag::scope scope(self.busy);
                const auto &           rows = self.mtp().hidden_state();
                return to_array(rows, std::min(rows.size(), static_cast<size_t>(self.mtp().n_embd_feat())));
            },
            "The block's own hidden state of that row: float32 (n_embd,).");
}

} // namespace eagle3::python
