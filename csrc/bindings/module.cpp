#include "module.h"
#include "nogil.h"

#include "error.h"
#include "file_text.h"

#include <string>
#include <string_view>

namespace eagle3::python {

// An exception class of llama_cpp_eagle3.errors, which lives as long as the interpreter.
static py::handle error_class(const char * name) {
    return py::object(py::module_::import("llama_cpp_eagle3.errors").attr(name)).release();
}

// A message may quote bytes of a damaged or hostile file: those that are no UTF-8 are replaced, those that would move a
// terminal's cursor are spelled, and of a long one the middle is left out.
static std::string printable(std::string_view text) {
    constexpr size_t n_max = 4000;
    std::string      out;
    for (size_t i = 0; i < text.size(); ++i) {
        if (text.size() > n_max && i == n_max / 2) {
            out += " ... ";
            i = text.size() - n_max / 2;
        }
        const auto c = static_cast<unsigned char>(text[i]);
        out += c < 0x20 || c == 0x7f ? format("\\x%02x", c) : std::string(1, text[i]);
    }
    return out;
}

static void set_error(py::handle cls, const std::exception & e) {
    PyErr_SetObject(cls.ptr(), text_of(printable(e.what())).ptr());
}

static void register_errors() {
    static const py::handle cls_error        = error_class("Eagle3Error");
    static const py::handle cls_model_file   = error_class("ModelFileError");
    static const py::handle cls_incompatible = error_class("IncompatibleDraftError");
    static const py::handle cls_context_full = error_class("ContextFullError");
    static const py::handle cls_logits       = error_class("LogitsError");
    static const py::handle cls_mismatch     = error_class("LibraryMismatchError");
    static const py::handle cls_busy         = error_class("BusyError");

    py::register_local_exception_translator([](std::exception_ptr p) {
        try {
            if (p) {
                std::rethrow_exception(p);
            }
        } catch (const model_file_error & e) {
            set_error(cls_model_file, e);
        } catch (const incompatible_draft_error & e) {
            set_error(cls_incompatible, e);
        } catch (const context_full_error & e) {
            set_error(cls_context_full, e);
        } catch (const logits_error & e) {
            set_error(cls_logits, e);
        } catch (const library_mismatch_error & e) {
            set_error(cls_mismatch, e);
        } catch (const busy_error & e) {
            set_error(cls_busy, e);
        } catch (const error & e) {
            set_error(cls_error, e);
        }
    });
}

} // namespace eagle3::python

PYBIND11_MODULE(_core, m) {
    using namespace eagle3::python;

    m.doc()                            = "Compiled part of llama_cpp_eagle3: feature tap, target, drafters, policy.";
    m.attr("LLAMA_CPP_PYTHON_VERSION") = LLAMA_CPP_PYTHON_VERSION;
    m.attr("SOURCES_DIGEST")           = EAGLE3_SOURCES_DIGEST;

    // atexit calls functions that are registered later first, and these may still compute
    py::module_::import("atexit").attr("register")(py::cpp_function(&end_threads));

    register_errors();
    register_guard(m);
    register_devices(m);
    register_feature_tap(m);
    register_target(m);
    register_target_info(m);
    register_head(m);
    register_kernels(m);
    register_model_files(m);
    register_sampler(m);
    register_grammar(m);
    register_drafter(m);
    register_eagle3_drafter(m);
    register_mtp_drafter(m); // Drafters
    register_simple_drafter(m);
    register_dflash(m);
    register_assistant(m);
    register_text(m);
    register_policy(m);
    register_sound(m);
}
