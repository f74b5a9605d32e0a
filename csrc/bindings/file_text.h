// Text of a file as Python has it: bytes that are no UTF-8 are replaced.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

namespace eagle3::python {

inline pybind11::str text_of(const std::string & s) {
    return pybind11::reinterpret_steal<pybind11::str>(
        PyUnicode_DecodeUTF8(s.data(), static_cast<Py_ssize_t>(s.size()), "replace"));
}

// A getter of a class' text.
template <typename T>
auto text_getter(std::string T::* text) {
    return [text](const T & self) {
        return text_of(self.*text);
    };
}

} // namespace eagle3::python
