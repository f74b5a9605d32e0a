#pragma once

#include <pybind11/gil_safe_call_once.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <vector>

namespace eagle3::python {

// a llama_cpp_eagle3.draft.Draft; the GIL must be held
inline pybind11::object to_draft(const std::vector<int32_t> & tokens, const std::vector<int32_t> & parents,
                                 const std::vector<float> & probs, const std::vector<int32_t> & sources = {}) {
    PYBIND11_CONSTINIT static pybind11::gil_safe_call_once_and_store<pybind11::object> type;
    type.call_once_and_store_result(
        [] { return pybind11::object(pybind11::module_::import("llama_cpp_eagle3.draft").attr("Draft")); });
    return type.get_stored()(tokens, parents, probs, sources);
}

} // namespace eagle3::python
