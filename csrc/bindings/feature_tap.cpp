#include "target/feature_tap.h"

#include "module.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

namespace eagle3::python {

namespace {

// A read-only view that keeps the rows alive: while it exists, later decodes write to other memory.
py::array_t<float> view_rows(const feature_tap & tap) {
    using shared_t = std::shared_ptr<const float[]>;

    auto *            shared = new shared_t(tap.share());
    const py::capsule owner(shared, [](void * ptr) { delete static_cast<shared_t *>(ptr); });

    py::array_t<float> res({ static_cast<py::ssize_t>(tap.n_rows()), static_cast<py::ssize_t>(tap.boundaries().size()),
                             static_cast<py::ssize_t>(tap.n_embd()) },
                           shared->get(), owner);
    res.attr("flags").attr("writeable") = false;
    return res;
}

} // namespace

void register_feature_tap(py::module_ & m) {
    py::class_<feature_tap>(m, "FeatureTap", R"pbdoc(
            Reads the target's hidden states at some boundaries while it decodes.

            A boundary b is the residual stream after b layers, 0 to n_layer; n_layer + 1 is the stream after the final
            norm. Create the tap before the context, put `cb_eval` and `cb_eval_user_data` into the context's
            parameters, and give the tap to `Target`. It must live as long as the context.
        )pbdoc")
        .def(py::init<std::vector<int32_t>, int32_t, int32_t, const std::string &, const std::string &>(),
             py::arg("boundaries"), py::arg("n_layer"), py::arg("n_embd"), py::arg("arch"), py::arg("kind") = "auto")
        .def_property_readonly(
            "kind", [](const feature_tap & self) { return self.native() ? "native" : "callback"; },
            "How rows are read: native (llama.cpp copies them) or callback (we copy them while the graph is computed).")
        .def_property_readonly("boundaries", &feature_tap::boundaries)
        .def_property_readonly("needs_all_outputs", &feature_tap::needs_all_outputs,
                               "True if rows exist only for tokens with logits; Target then asks for all of them.")
        .def_property_readonly(
            "cb_eval", [](const feature_tap & self) { return reinterpret_cast<uintptr_t>(self.cb_eval()); },
            "Address for llama_context_params.cb_eval, 0 when native.")
        .def_property_readonly(
            "cb_eval_user_data",
            [](const feature_tap & self) { return reinterpret_cast<uintptr_t>(self.cb_eval_user_data()); },
            "Address for llama_context_params.cb_eval_user_data, 0 when native.")
        .def(
            "attach",
            [](feature_tap & self, uintptr_t ctx) {
                if (ctx == 0) {
                    throw std::invalid_argument("the context must not be null");
                }
                self.attach(reinterpret_cast<llama_context *>(ctx));
            },
            py::arg("ctx"), "Bind the tap to a context; `Target` does this.")
        .def_property_readonly("rows", &view_rows, R"pbdoc(
            The rows of the last decode in batch order: float32, (n_tokens, n_boundaries, n_embd), read-only.

            It is a view, not a copy, and keeps its values when the target goes on.
        )pbdoc")
        .def(
            "rows_of",
            [](const feature_tap & self, uint64_t n_decode) {
                self.check_decode(n_decode);
                return view_rows(self);
            },
            py::arg("n_decode"), "Return `rows`, or raise Eagle3Error if the last decode is not number `n_decode`.")
        .def_property_readonly("n_decode", &feature_tap::n_decode, "The number of the last decode, counted from 1.")
        .def("__repr__", [](const feature_tap & self) {
            return py::str("<FeatureTap {} boundaries={}>")
                .format(self.native() ? "native" : "callback", py::cast(self.boundaries()));
        });
}

} // namespace eagle3::python
