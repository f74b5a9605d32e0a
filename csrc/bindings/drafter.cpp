#include "draft/drafter.h"

#include "busy_flag.h"
#include "module.h"
#include "py_device.h"
#include "target/feature_tap.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

namespace eagle3::python {

namespace {

using tokens_t = std::vector<llama_token>;
using rows_t   = py::array_t<float, py::array::c_style | py::array::forcecast>;

// a drafter and the flag that keeps a second thread out
struct py_drafter {
    py_drafter(const std::string & path, const llama_model * model_tgt, int32_t n_ctx, const drafter_params & params) :
        impl(path, model_tgt, n_ctx, params) {}

    drafter   impl;
    busy_flag busy;
};

std::unique_ptr<py_drafter> make_drafter(const std::string & path, uintptr_t model_tgt, int32_t n_ctx,
                                         const std::optional<std::vector<int32_t>> & boundaries,
                                         std::optional<py_device> device, int32_t n_gpu_layers,
                                         std::optional<int> type_k, std::optional<int> type_v, int32_t n_threads,
                                         int32_t n_batch) {
    if (model_tgt == 0 || n_ctx <= 0 || n_threads <= 0 || n_batch <= 0) {
        throw std::invalid_argument("expected the address of a loaded model and positive n_ctx, n_threads and n_batch");
    }
    const auto to_type = [](std::optional<int> type) {
        const int value = type.value_or(GGML_TYPE_F16);
        if (value < 0 || value >= GGML_TYPE_COUNT) {
            throw std::invalid_argument(format("expected a ggml type, found %d", value));
        }
        return static_cast<ggml_type>(value);
    };
    drafter_params params;
    params.boundaries   = boundaries.value_or(std::vector<int32_t>());
    params.dev          = device ? device->dev : nullptr;
    params.n_gpu_layers = n_gpu_layers;
    params.type_k       = to_type(type_k);
    params.type_v       = to_type(type_v);
    params.n_threads    = n_threads;
    params.n_batch      = n_batch;
    return std::make_unique<py_drafter>(path, reinterpret_cast<const llama_model *>(model_tgt), n_ctx, params);
}

// rows of the tap's last decode, without a copy
void process_tap(py_drafter & self, const feature_tap & tap, const tokens_t & tokens, int32_t n_past,
                 std::optional<int32_t> n_rows) {
    const busy_flag::scope scope(self.busy);
    const auto             n = static_cast<size_t>(n_rows.value_or(static_cast<int32_t>(tokens.size())));
    if (n > tokens.size() || n > static_cast<size_t>(tap.n_rows())) {
        throw std::invalid_argument(format("%zu rows were asked for, there are %zu tokens and %zu rows", n,
                                           tokens.size(), static_cast<size_t>(tap.n_rows())));
    }
    if (static_cast<int32_t>(tap.n_row_floats()) != self.impl.head().n_embd_feat()) {
        throw incompatible_draft_error(format("'%s': the head reads rows of %d values, the tap gives %zu",
                                              self.impl.head().path.c_str(), self.impl.head().n_embd_feat(),
                                              static_cast<size_t>(tap.n_row_floats())));
    }
    self.impl.process(tap.rows(), tokens.data(), static_cast<int32_t>(n), n_past);
}

void process_rows(py_drafter & self, const rows_t & rows, const tokens_t & tokens, int32_t n_past) {
    if (rows.ndim() < 2 || rows.shape(0) != static_cast<py::ssize_t>(tokens.size()) ||
        rows.size() != rows.shape(0) * self.impl.head().n_embd_feat()) {
        throw std::invalid_argument(
            format("expected rows of shape (%zu, %d)", tokens.size(), self.impl.head().n_embd_feat()));
    }
    const float *                data = rows.data();
    const py::gil_scoped_release release;
    const busy_flag::scope       scope(self.busy);
    self.impl.process(data, tokens.data(), static_cast<int32_t>(tokens.size()), n_past);
}

tokens_t propose(py_drafter & self, llama_token id_last, int32_t n_max, float p_min) {
    const busy_flag::scope scope(self.busy);
    return self.impl.propose(id_last, n_max, p_min);
}

py::array_t<float> to_array(const std::vector<float> & values) {
    return py::array_t<float>(static_cast<py::ssize_t>(values.size()), values.data());
}

} // namespace

void register_drafter(py::module_ & m) {
    const auto nogil = py::call_guard<py::gil_scoped_release>();

    py::class_<py_drafter>(m, "Drafter",
                           "An EAGLE-3 head with its K/V cache: takes target rows in, drafts tokens for one sequence.")
        .def(py::init(&make_drafter), py::arg("path"), py::arg("model_tgt"), py::arg("n_ctx"), py::kw_only(),
             py::arg("boundaries") = py::none(), py::arg("device") = py::none(), py::arg("n_gpu_layers") = -1,
             py::arg("type_k") = py::none(), py::arg("type_v") = py::none(), py::arg("n_threads") = 1,
             py::arg("n_batch") = 512, nogil,
             "path: GGUF head. model_tgt: address of the loaded target, which must outlive the drafter. boundaries: "
             "instead of the head's own.\n"
             "device: where to run. Without it a device of this machine, by n_gpu_layers: 0 = CPU, > 0 = the first "
             "accelerator, < 0 = where the target's lm_head is. type_k, type_v: ggml types of the cache.\n"
             "Raises ModelFileError, IncompatibleDraftError.")
        .def("process", &process_tap, py::arg("tap"), py::arg("tokens"), py::arg("n_past"),
             py::arg("n_rows") = py::none(), nogil,
             "Take in the first n_rows rows of the tap's last decode: the tokens at positions n_past, n_past + 1, ...")
        .def("process_rows", &process_rows, py::arg("rows"), py::arg("tokens"), py::arg("n_past"),
             "The same from an array, float32 of shape (n_tokens, n_boundaries * n_embd_tgt).")
        .def("propose", &propose, py::arg("id_last"), py::arg("n_max"), py::arg("p_min") = 0.0f, nogil,
             "Up to n_max target tokens that may follow id_last, the token at position n_past. Ends before a token "
             "less likely than p_min.")
        .def(
            "truncate",
            [](py_drafter & self, int32_t n_past) {
                const busy_flag::scope scope(self.busy);
                return self.impl.truncate(n_past);
            },
            py::arg("n_past"),
            "Forget positions from n_past on. Returns the position from which rows must be processed again.")
        .def(
            "reset",
            [](py_drafter & self) {
                const busy_flag::scope scope(self.busy);
                self.impl.reset();
            },
            "Forget everything.")
        .def("state_get",
             [](py_drafter & self) {
                 const busy_flag::scope scope(self.busy);
                 const auto             state = self.impl.state_get();
                 return py::bytes(reinterpret_cast<const char *>(state.data()), state.size());
             })
        .def("state_set",
             [](py_drafter & self, const py::bytes & bytes) {
                 const auto             view = static_cast<std::string_view>(bytes);
                 const busy_flag::scope scope(self.busy);
                 self.impl.state_set({ view.begin(), view.end() });
             })
        .def_property_readonly(
            "head", [](const py_drafter & self) -> const head_hparams & { return self.impl.head(); },
            py::return_value_policy::reference_internal)
        .def_property_readonly("boundaries", [](const py_drafter & self) { return self.impl.boundaries(); })
        .def_property_readonly("device", [](const py_drafter & self) { return self.impl.dev().name(); })
        .def_property_readonly("n_embd", [](const py_drafter & self) { return self.impl.head().n_embd; })
        .def_property_readonly("n_ctx", [](const py_drafter & self) { return self.impl.n_ctx(); })
        .def_property_readonly(
            "n_past", [](const py_drafter & self) { return self.impl.n_past(); }, "positions whose rows were taken in")
        .def_property_readonly("n_vocab_dft", [](const py_drafter & self) { return self.impl.weights().n_vocab_dft; })
        .def_property_readonly(
            "n_bytes_own", [](const py_drafter & self) { return self.impl.weights().n_bytes_own; },
            "of the head's tensors")
        .def_property_readonly(
            "n_bytes_shared", [](const py_drafter & self) { return self.impl.weights().n_bytes_shared; },
            "of the target's tensors that the head uses in place")
        .def_property_readonly("n_bytes_cache", [](const py_drafter & self) { return self.impl.n_bytes_cache(); })
        .def_property_readonly(
            "draft_logits",
            [](py_drafter & self) {
                const busy_flag::scope scope(self.busy);
                return to_array(self.impl.logits());
            },
            "float32 (n_vocab_dft,), of the last drafted token")
        .def_property_readonly(
            "hidden_state",
            [](py_drafter & self) {
                const busy_flag::scope scope(self.busy);
                return to_array(self.impl.hidden_state());
            },
            "float32 (n_embd,), the recurrent row after the last drafted token")
        .def_property_readonly("t_process_us", [](const py_drafter & self) { return self.impl.stats.t_process_us; })
        .def_property_readonly("t_propose_us", [](const py_drafter & self) { return self.impl.stats.t_propose_us; })
        .def_property_readonly(
            "t_graph_us", [](const py_drafter & self) { return self.impl.stats.t_graph_us; }, "of both, inside ggml")
        .def_property_readonly("n_propose", [](const py_drafter & self) { return self.impl.stats.n_propose; })
        .def_property_readonly("n_steps", [](const py_drafter & self) { return self.impl.stats.n_steps; });
}

} // namespace eagle3::python
