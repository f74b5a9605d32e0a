#include "module.h"

#include "error.h"

namespace eagle3::python {

// the exception classes of llama_cpp_eagle3.errors. They live as long as the interpreter
static py::handle error_class(const char * name) {
    return py::object(py::module_::import("llama_cpp_eagle3.errors").attr(name)).release();
}

static void register_errors() {
    static const py::handle cls_error        = error_class("Eagle3Error");
    static const py::handle cls_model_file   = error_class("ModelFileError");
    static const py::handle cls_incompatible = error_class("IncompatibleDraftError");
    static const py::handle cls_context_full = error_class("ContextFullError");
    static const py::handle cls_mismatch     = error_class("LibraryMismatchError");
    static const py::handle cls_busy         = error_class("BusyError");

    py::register_local_exception_translator([](std::exception_ptr p) {
        try {
            if (p) {
                std::rethrow_exception(p);
            }
        } catch (const model_file_error & e) {
            PyErr_SetString(cls_model_file.ptr(), e.what());
        } catch (const incompatible_draft_error & e) {
            PyErr_SetString(cls_incompatible.ptr(), e.what());
        } catch (const context_full_error & e) {
            PyErr_SetString(cls_context_full.ptr(), e.what());
        } catch (const library_mismatch_error & e) {
            PyErr_SetString(cls_mismatch.ptr(), e.what());
        } catch (const busy_error & e) {
            PyErr_SetString(cls_busy.ptr(), e.what());
        } catch (const error & e) {
            PyErr_SetString(cls_error.ptr(), e.what());
        }
    });
}

} // namespace eagle3::python

PYBIND11_MODULE(_core, m) {
    using namespace eagle3::python;

    m.doc()                            = "Compiled part of llama_cpp_eagle3: feature tap, target, EAGLE-3 drafter.";
    m.attr("LLAMA_CPP_PYTHON_VERSION") = LLAMA_CPP_PYTHON_VERSION;

    register_errors();
    register_feature_tap(m);
    register_target(m);
    register_head(m);
    register_drafter(m);
}
