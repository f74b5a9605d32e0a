#include "error.h"
#include "kernels/cpu_kernels.h"
#include "llama_ext.h"
#include "module.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

namespace eagle3::python {

using kernels::cpu_kernels;
using floats = py::array_t<float, py::array::c_style | py::array::forcecast>;

static const kernels::kernel & find(const std::string & name) {
    for (const kernels::kernel * k : kernels::all()) {
        if (name == k->name && k->is_supported()) {
            return *k;
        }
    }
    throw error(format("no kernel '%s' for this processor", name.c_str()));
}

static floats mul_mat(const std::string & name, const py::bytes & weights, const floats & x) {
    const kernels::kernel & k = find(name);
    if (x.ndim() != 2 || x.shape(1) % k.n_inputs != 0) {
        throw error(format("x must be rows of a multiple of %lld values", static_cast<long long>(k.n_inputs)));
    }
    const auto    data       = static_cast<std::string_view>(weights);
    const int64_t n_in       = x.shape(1);
    const size_t  group_size = ggml_row_size(k.type, n_in) * k.n_channels;
    if (group_size == 0 || data.size() % group_size != 0) {
        throw error(
            format("the weights have %zu bytes, which is no multiple of a group's %zu", data.size(), group_size));
    }
    const int64_t        n_groups = data.size() / group_size;
    std::vector<uint8_t> rows(x.shape(0) * k.row_size(n_in));
    for (py::ssize_t r = 0; r < x.shape(0); ++r) {
        k.quantize(x.data(r), n_in, rows.data() + r * k.row_size(n_in));
    }
    floats out({ x.shape(0), static_cast<py::ssize_t>(n_groups * k.n_channels) });
    k.compute(reinterpret_cast<const uint8_t *>(data.data()), n_in, rows.data(), x.shape(0), 0, n_groups,
              out.mutable_data(), out.shape(1));
    return out;
}

void register_kernels(py::module_ & m) {
    py::class_<cpu_kernels>(m, "CpuKernels",
                            "While it lives, the CPU backend multiplies this model's weights by our kernels.")
        .def(py::init([](uintptr_t model, int64_t n_rows_max) {
                 std::vector<const ggml_tensor *> weights;
                 for (const auto & [name, tensor] :
                      llama_internal_get_tensor_map(reinterpret_cast<const llama_model *>(model))) {
                     weights.push_back(tensor);
                 }
                 return std::make_unique<cpu_kernels>(weights, n_rows_max);
             }),
             py::arg("model"), py::arg("n_rows_max") = 16)
        .def("close", &cpu_kernels::close, "To be called before the model is freed.")
        .def_property_readonly("n_weights", &cpu_kernels::n_weights, "[name of a kernel]: weights that it computes")
        .def_property_readonly("why_not", &cpu_kernels::why_not, "why there are none; empty if there are some");
    m.def(
        "cpu_kernel_names",
        [] {
            std::vector<std::string> names;
            for (const kernels::kernel * k : kernels::all()) {
                if (k->is_supported()) {
                    names.emplace_back(k->name);
                }
            }
            return names;
        },
        "Kernels that this processor can run.");
    m.def("cpu_kernel_mul_mat", &mul_mat, py::arg("name"), py::arg("weights"), py::arg("x"),
          "Weights in a kernel's layout times rows (n_rows, n_in), as (n_rows, n_out).");
}

} // namespace eagle3::python
