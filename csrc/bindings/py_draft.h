#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <vector>

namespace eagle3::python {

// a llama_cpp_eagle3.draft.Draft; the GIL must be held
inline pybind11::object to_draft(const std::vector<int32_t> & tokens, const std::vector<int32_t> & parents,
                                 const std::vector<float> & probs, const std::vector<int32_t> & sources = {}) {
    return pybind11::module_::import("llama_cpp_eagle3.draft").attr("Draft")(tokens, parents, probs, sources);
}

} // namespace eagle3::python
