// Paths as Python has them: on POSIX their bytes need not be UTF-8, nor text in the locale's encoding.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

namespace eagle3::python {

struct fs_path {
    std::string bytes; // as the system takes them, on Windows UTF-8

    operator const std::string &() const { return bytes; }
};

// A getter of a class' path.
template <typename T>
auto path_getter(std::string T::* path) {
    return [path](const T & self) {
        return fs_path{ self.*path };
    };
}

} // namespace eagle3::python

namespace pybind11::detail {

template <>
struct type_caster<eagle3::python::fs_path> {
    PYBIND11_TYPE_CASTER(eagle3::python::fs_path, const_name("str"));

    bool load(handle src, bool) {
        PyObject * bytes = nullptr;
        if (!PyUnicode_FSConverter(src.ptr(), &bytes)) {
            PyErr_Clear();
            return false;
        }
        value.bytes = reinterpret_steal<pybind11::bytes>(bytes);
        return true;
    }

    static handle cast(const eagle3::python::fs_path & src, return_value_policy, handle) {
        return PyUnicode_DecodeFSDefaultAndSize(src.bytes.data(), static_cast<Py_ssize_t>(src.bytes.size()));
    }
};

} // namespace pybind11::detail
