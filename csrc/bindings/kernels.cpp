#include "error.h"
#include "huge_pages.h"
#include "kernels/limited_product.h"
#include "kernels/timing.h"
#include "llama_ext.h"
#include "lm_head.h"
#include "module.h"
#include "nogil.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>

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

static kernels::matrices to_matrices(const std::vector<uintptr_t> & addresses) {
    kernels::matrices weights;
    for (const uintptr_t address : addresses) {
        weights.push_back(reinterpret_cast<const ggml_tensor *>(address));
    }
    return weights;
}

static std::vector<uintptr_t> matrices_of(uintptr_t address) {
    std::vector<uintptr_t> addresses;
    for (const ggml_tensor * weight : model_matrices(reinterpret_cast<const llama_model *>(address))) {
        addresses.push_back(reinterpret_cast<uintptr_t>(weight));
    }
    return addresses;
}

// [name of a kernel]: (k, n, experts) of each weight that it would compute.
static std::map<std::string, std::vector<std::array<int64_t, 3>>> shapes_of(const std::vector<uintptr_t> & addresses,
                                                                            const kernels::row_limits &    limits) {
    std::map<std::string, std::vector<std::array<int64_t, 3>>> shapes;
    for (const auto & [name, weights] : kernels::matrices_by_kernel(to_matrices(addresses), limits)) {
        for (const ggml_tensor * w : weights) {
            shapes[name].push_back({ w->ne[0], w->ne[1], w->ne[2] * w->ne[3] });
        }
    }
    return shapes;
}

// A limited_product as a `with` block, for tests.
struct limited_scope {
    limited_scope(uintptr_t matrix, kernels::channel_ranges all) :
        ranges(std::move(all)),
        limited(std::make_unique<kernels::limited_product>(reinterpret_cast<const ggml_tensor *>(matrix), &ranges)) {}

    void close() { limited.reset(); }

    kernels::channel_ranges                   ranges;
    std::unique_ptr<kernels::limited_product> limited;
};

void register_kernels(py::module_ & m) {
    py::class_<cpu_kernels>(m, "CpuKernels",
                            "While it lives, the CPU backend multiplies by these weights with our kernels.")
        .def(py::init([](const std::vector<uintptr_t> & matrices, const kernels::row_limits & n_rows_max) {
                 return std::make_unique<cpu_kernels>(to_matrices(matrices), n_rows_max);
             }),
             py::arg("matrices"), py::arg("n_rows_max"),
             R"pbdoc(
            Register weights.

            matrices: addresses of ggml tensors. n_rows_max: for each kernel's name the most rows of an operation,
            beyond which ggml computes it; kernels that are not named are not used.
        )pbdoc")
        .def("close", &cpu_kernels::close, "Unregister the weights. Has to be called before they are freed.")
        .def_property_readonly("n_weights", &cpu_kernels::n_weights,
                               "The number of weights that each kernel computes, by its name.")
        .def_property_readonly("why_not", &cpu_kernels::why_not,
                               "Why no kernel computes any weight; empty if one does.");
    py::class_<limited_scope>(
        m, "LimitedProduct",
        "While it is open, graphs that this thread computes get only a part of a matrix's product.")
        .def(py::init<uintptr_t, kernels::channel_ranges>(), py::arg("matrix"), py::arg("ranges"),
             "Limit a product. matrix: the address of a ggml tensor. ranges: (first, last) of the channels that are "
             "computed; the others become -inf.")
        .def("close", &limited_scope::close,
             "End the limit. Of several open ones, the one that was made last is closed first.");
    m.def("model_matrices", &matrices_of, py::arg("model"),
          "Return the addresses of the ggml tensors that a llama_model multiplies by.");
    m.def("use_huge_pages", &use_huge_pages,
          "Ask for pages of 2 MiB for ggml's large buffers in the CPU's memory from now on (Linux).");
    m.def("cpu_kernel_shapes", &shapes_of, py::arg("matrices"), py::arg("n_rows_max"),
          "Return the shapes (k, n, experts) of the weights that each kernel would compute, by its name.");
    m.def(
        "time_cpu_kernels",
        [](const std::vector<uintptr_t> & matrices, const kernels::row_limits & n_rows_max, int32_t n_threads,
           const std::vector<int64_t> & n_rows, double seconds) {
            if (n_threads <= 0 || n_rows.empty() || *std::min_element(n_rows.begin(), n_rows.end()) <= 0) {
                throw std::invalid_argument("expected a positive number of threads, and positive numbers of rows");
            }
            return kernels::time_kernels(to_matrices(matrices), n_rows_max, n_threads, n_rows, seconds);
        },
        py::arg("matrices"), py::arg("n_rows_max"), py::arg("n_threads"), py::arg("n_rows"), py::arg("seconds"),
        py::call_guard<nogil>(),
        "Measure kernels; returns the microseconds per MiB of weights by our kernel and by ggml, by kernel name and "
        "rows.");
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
        "Return the names of the kernels that this processor can run.");
    m.def(
        "cpu_kernel_format",
        [](const std::string & name) {
            const kernels::kernel & k = find(name);
            return py::make_tuple(static_cast<int>(k.type), k.layout == kernels::layout::repacked, k.n_channels,
                                  k.n_inputs);
        },
        py::arg("name"),
        "Return the format of a kernel's weights: ggml type, whether repacked, channels of a group, inputs of a "
        "block.");
    m.def("cpu_kernel_mul_mat", &mul_mat, py::arg("name"), py::arg("weights"), py::arg("x"),
          "Multiply rows x, float32 (n_rows, n_in), by weights in a kernel's layout; returns (n_rows, n_out).");
}

} // namespace eagle3::python
