#pragma once

#include "drafter/draft_tree.h"

#include <pybind11/gil_safe_call_once.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

namespace eagle3::python {

// A llama_cpp_eagle3.engine.draft.Draft.
class py_draft : public pybind11::object {
  public:
    explicit py_draft(pybind11::object draft) : object(std::move(draft)) {}
};

// The GIL must be held.
inline py_draft to_draft(const draft_tree & draft) {
    PYBIND11_CONSTINIT static pybind11::gil_safe_call_once_and_store<pybind11::object> type;
    type.call_once_and_store_result(
        [] { return pybind11::object(pybind11::module_::import("llama_cpp_eagle3.engine.draft").attr("Draft")); });
    return py_draft(type.get_stored()(draft.tokens, draft.parents, draft.probs, draft.sources));
}

} // namespace eagle3::python

template <>
struct pybind11::detail::handle_type_name<eagle3::python::py_draft> {
    static constexpr auto name = const_name("llama_cpp_eagle3.engine.draft.Draft");
};
