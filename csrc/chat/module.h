#pragma once

#include <pybind11/pybind11.h>

namespace eagle3::chat {

namespace py = pybind11;

void register_templates(py::module_ & m);
void register_parser(py::module_ & m);
void register_sampler(py::module_ & m);

// Replaces bytes that are no UTF-8: a model's text may end in the middle of a character.
py::str to_str(const std::string & text);

} // namespace eagle3::chat
