#include "module.h"

#include "busy_flag.h"

#include <cstring>
#include <new>

namespace eagle3::chat {

py::str to_str(const std::string & text) {
    PyObject * str = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
    if (!str) {
        throw py::error_already_set();
    }
    return py::reinterpret_steal<py::str>(str);
}

// Makes a ValueError of everything that llama.cpp's chat code refuses.
static void register_errors() {
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
        } catch (const std::exception & e) {
            PyErr_SetObject(PyExc_ValueError, to_str(e.what()).ptr());
        }
    });
}

} // namespace eagle3::chat

PYBIND11_MODULE(_chat, m) {
    using namespace eagle3::chat;

    m.doc() = "llama.cpp's chat code: templates, grammars for tool calls and JSON schemas, parsers of answers.";

    register_errors();
    register_templates(m);
    register_parser(m);
    register_sampler(m);
}
