#include "module.h"

#include "busy_flag.h"
#include "json_text.h"
#include "template_steps.h"

#include <pybind11/stl.h>

#include <cstring>
#include <new>
#include <string>
#include <string_view>
#include <tuple>

namespace eagle3::chat {

py::str to_str(const std::string & text) {
    PyObject * str = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
    if (!str) {
        throw py::error_already_set();
    }
    return py::reinterpret_steal<py::str>(str);
}

// Makes a ValueError of everything that llama.cpp's chat code refuses.
static void register_errors(py::module_ & m) {
    static PyObject * const limit_error =
        PyErr_NewException("llama_cpp_eagle3._chat.TemplateLimitError", PyExc_ValueError, nullptr);
    m.attr("TemplateLimitError") = py::handle(limit_error);
    py::register_local_exception_translator([](std::exception_ptr p) {
        try {
            if (p) {
                std::rethrow_exception(p);
            }
        } catch (const std::bad_alloc &) {
            throw;
        } catch (const busy_error & e) {
            PyErr_SetObject(py::module_::import("llama_cpp_eagle3.errors").attr("BusyError").ptr(),
                            to_str(e.what()).ptr());
        } catch (const template_limit_error & e) {
            PyErr_SetObject(limit_error, to_str(e.what()).ptr());
        } catch (const std::exception & e) {
            PyErr_SetObject(PyExc_ValueError, to_str(e.what()).ptr());
        }
    });
}

static void register_json(py::module_ & m) {
    const auto nogil = py::call_guard<py::gil_scoped_release>();

    m.def(
        "size_of_json",
        [](std::string_view text) {
            const json_size found = size_of_json(text);
            return std::make_tuple(found.n_levels, found.n_values, found.n_names, found.n_digits);
        },
        py::arg("text"), nogil,
        "Levels of brackets, commas and opening brackets, names and numbers with a fraction, digits of the longest "
        "number.");
    m.def(
        "without_halves",
        [](std::string_view text) {
            std::string whole;
            {
                const py::gil_scoped_release release;
                whole = without_halves(std::string(text));
            }
            return py::bytes(whole);
        },
        py::arg("text"), "A text of JSON in which half a pair of surrogates is a replacement character.");
    m.def("parsed_levels", &parsed_levels, py::arg("text"), nogil,
          "Whether llama.cpp parses a text as JSON, and the levels of brackets before that ends.");
}

} // namespace eagle3::chat

PYBIND11_MODULE(_chat, m) {
    using namespace eagle3::chat;

    m.doc() = "llama.cpp's chat code: templates, grammars for tool calls and JSON schemas, parsers of answers.";

    register_errors(m);
    register_json(m);
    register_templates(m);
    register_parser(m);
    register_sampler(m);
}
