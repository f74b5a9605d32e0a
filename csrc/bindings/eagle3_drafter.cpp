#include "drafters/eagle3/eagle3_drafter.h"

#include "drafters/eagle3/narrow.h"
#include "fs_path.h"
#include "module.h"
#include "nogil.h"
#include "py_device.h"
#include "py_drafter.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

namespace eagle3::python {

namespace {

struct py_eagle3_drafter : py_drafter {
    explicit py_eagle3_drafter(std::unique_ptr<eagle3_drafter> impl) : py_drafter(std::move(impl)) {}

    eagle3_drafter & eagle3() const { return static_cast<eagle3_drafter &>(impl()); }
};

std::unique_ptr<py_eagle3_drafter> make_eagle3(const fs_path & path, uintptr_t model_tgt, int32_t n_ctx,
                                               int32_t n_seq_max, int32_t n_unroll,
                                               const std::optional<std::vector<int32_t>> & boundaries,
                                               std::optional<py_device> device, int32_t n_gpu_layers,
                                               std::optional<int> type, std::optional<int> type_k,
                                               std::optional<int> type_v, int32_t n_threads, int32_t n_batch) {
    if (model_tgt == 0 || n_ctx <= 0 || n_seq_max <= 0 || n_threads <= 0 || n_batch <= 0) {
        throw std::invalid_argument(
            "expected the address of a loaded model and positive n_ctx, n_seq_max, n_threads and n_batch");
    }
    if (n_unroll == 0 || n_unroll < -1) {
        throw std::invalid_argument(format("n_unroll: expected -1 or a positive number of steps, found %d", n_unroll));
    }
    if (n_ctx > INT32_MAX / 2 / n_seq_max) {
        throw std::invalid_argument(format("n_ctx %d for %d sequences is more than can be numbered", n_ctx, n_seq_max));
    }
    const auto to_type = [](std::optional<int> type, ggml_type other) {
        const int value = type.value_or(other);
        if (value < 0 || value >= GGML_TYPE_COUNT) {
            throw std::invalid_argument(format("expected a ggml type, found %d", value));
        }
        return static_cast<ggml_type>(value);
    };
    eagle3_params params;
    params.n_seq_max    = n_seq_max;
    params.n_unroll     = n_unroll;
    params.boundaries   = boundaries.value_or(std::vector<int32_t>());
    params.dev          = device ? device->dev : nullptr;
    params.n_gpu_layers = n_gpu_layers;
    params.type         = to_type(type, GGML_TYPE_F32);
    params.type_k       = to_type(type_k, GGML_TYPE_F16);
    params.type_v       = to_type(type_v, GGML_TYPE_F16);
    params.n_threads    = n_threads;
    params.n_batch      = n_batch;
    if (!can_convert_to(params.type)) {
        throw std::invalid_argument(format("type: matrices can be converted to %s, found %s",
                                           convertible_types().c_str(), ggml_type_name(params.type)));
    }
    return std::make_unique<py_eagle3_drafter>(
        std::make_unique<eagle3_drafter>(path, reinterpret_cast<const llama_model *>(model_tgt), n_ctx, params));
}

py::array_t<float> to_array(const std::vector<float> & values) {
    return py::array_t<float>(static_cast<py::ssize_t>(values.size()), values.data());
}

} // namespace

void register_eagle3_drafter(py::module_ & m) {
    const auto without_gil = py::call_guard<nogil>();

    py::class_<py_eagle3_drafter, py_drafter>(m, "Eagle3Drafter", "An EAGLE-3 head with its K/V cache.")
        .def(py::init(&make_eagle3), py::arg("path"), py::arg("model_tgt"), py::arg("n_ctx"), py::kw_only(),
             py::arg("n_seq_max") = 1, py::arg("n_unroll") = -1, py::arg("boundaries") = py::none(),
             py::arg("device") = py::none(), py::arg("n_gpu_layers") = -1, py::arg("type") = py::none(),
             py::arg("type_k") = py::none(), py::arg("type_v") = py::none(), py::arg("n_threads") = 1,
             py::arg("n_batch") = 512, without_gil,
             R"pbdoc(
            Load a head.

            path: the head's GGUF. model_tgt: the address of the loaded target, which must outlive the drafter. n_ctx:
            positions of each of the n_seq_max sequences. n_unroll: steps of a chain in one graph, -1 = 1 on the CPU and
            all on an accelerator; parallel heads always take all. boundaries: replace the head's own. device: the
            device to run on; None = one of this machine by n_gpu_layers: 0 = the CPU, > 0 = the first accelerator, < 0
            = the device of the target's lm_head. type: the ggml type that wider matrices are converted to; None = as
            they are. type_k, type_v: ggml types of the cache.

            Raises ModelFileError, IncompatibleDraftError.
        )pbdoc")
        .def_property_readonly("head", [](const py_eagle3_drafter & self) { return self.eagle3().head(); })
        .def_property_readonly("n_embd", [](const py_eagle3_drafter & self) { return self.eagle3().head().n_embd; })
        .def_property_readonly("n_vocab_dft",
                               [](const py_eagle3_drafter & self) { return self.eagle3().weights().n_vocab_dft; })
        .def_property_readonly(
            "n_bytes_own", [](const py_eagle3_drafter & self) { return self.eagle3().weights().n_bytes_own; },
            "Bytes of the head's tensors.")
        .def_property_readonly(
            "n_bytes_shared", [](const py_eagle3_drafter & self) { return self.eagle3().weights().n_bytes_shared; },
            "Bytes of the target's tensors that the head uses in place.")
        .def_property_readonly(
            "n_bytes_cache",
            [](py_eagle3_drafter & self) {
                const busy_flag::scope scope(self.busy);
                return self.eagle3().n_bytes_cache();
            },
            "Bytes of the K/V cache at present; it grows and shrinks with its contents.")
        .def_property_readonly(
            "draft_logits",
            [](py_eagle3_drafter & self) {
                const busy_flag::scope scope(self.busy);
                return to_array(self.eagle3().logits());
            },
            "Logits of the last drafted token: float32 (n_vocab_dft,).")
        .def_property_readonly(
            "hidden_state",
            [](py_eagle3_drafter & self) {
                const busy_flag::scope scope(self.busy);
                return to_array(self.eagle3().hidden_state());
            },
            "The head's own row after the last drafted token, which the next step reads: float32 (n_embd,).")
        .def_property_readonly(
            "n_graph_nodes", [](const py_eagle3_drafter & self) { return self.eagle3().n_graph_nodes(); },
            "Operations of the last graph, without those that compute nothing.");
}

} // namespace eagle3::python
