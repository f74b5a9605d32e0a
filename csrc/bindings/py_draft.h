#pragma once

#include "drafter/draft_tree.h"

#include <pybind11/gil_safe_call_once.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

namespace eagle3::python {

// a llama_cpp_eagle3.engine.draft.Draft; the GIL must be held
inline pybind11::object to_draft(const draft_tree & draft) {
    PYBIND11_CONSTINIT static pybind11::gil_safe_call_once_and_store<pybind11::object> type;
    type.call_once_and_store_result(
        [] { return pybind11::object(pybind11::module_::import("llama_cpp_eagle3.engine.draft").attr("Draft")); });
    return type.get_stored()(draft.tokens, draft.parents, draft.probs, draft.sources);
}

} // namespace eagle3::python
