#include "error.h"
#include "file_text.h"
#include "fs_path.h"
#include "gguf_file.h"
#include "load_guard.h"
#include "module.h"
#include "nogil.h"
#include "target/adapter_check.h"
#include "target/blank_leaves.h"
#include "target/header_check.h"
#include "target/projector_info.h"
#include "target/tokenizer.h"

#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <memory>
#include <set>
#include <string>

namespace eagle3::python {

namespace {

// A guard as a `with` block.
struct py_load_guard {
    abort_guard::scope          scope;
    std::unique_ptr<load_guard> guard;
    std::string                 reason;
    std::set<std::string>       tensors, ignored;
    bool                        asserted = false;

    explicit py_load_guard(abort_guard::scope scope) : scope(scope) {}

    void enter() { guard = std::make_unique<load_guard>(scope); }

    void exit() {
        read();
        guard.reset();
    }

    void read() {
        if (guard) {
            reason   = guard->reason();
            tensors  = guard->tensors();
            ignored  = guard->ignored();
            asserted = guard->asserted();
        }
    }
};

py::typing::Set<py::str> set_of(const std::set<std::string> & texts) {
    py::typing::Set<py::str> res;
    for (const std::string & text : texts) {
        res.add(text_of(text));
    }
    return res;
}

const llama_vocab * vocab_at(uintptr_t vocab) {
    if (!vocab) {
        throw std::invalid_argument("the vocabulary must not be null");
    }
    return reinterpret_cast<const llama_vocab *>(vocab);
}

} // namespace

void register_model_files(py::module_ & m) {
    py::class_<py_load_guard>(m, "LoadGuard", R"pbdoc(
            While its block runs, an assertion of llama.cpp that fails on this thread ends the call instead of the
            process.

            It is for calls that load a model or make a context, which catch what it throws.
        )pbdoc")
        .def(py::init([](bool computes) {
                 return py_load_guard(computes ? abort_guard::outside_kernels : abort_guard::everywhere);
             }),
             py::kw_only(), py::arg("computes") = false,
             "computes: the calls compute too; an assertion in a kernel, where other threads wait, ends the process.")
        .def(
            "__enter__",
            [](py_load_guard & self) -> py_load_guard & {
                self.enter();
                return self;
            },
            py::return_value_policy::reference_internal)
        .def("__exit__", [](py_load_guard & self, const py::args &) { self.exit(); })
        .def_property_readonly(
            "reason",
            [](py_load_guard & self) {
                self.read();
                return text_of(self.reason);
            },
            "Why a call has failed, in llama.cpp's words; empty if it gave no reason.")
        .def_property_readonly(
            "tensors",
            [](py_load_guard & self) {
                self.read();
                return set_of(self.tensors);
            },
            "Names of the tensors that llama.cpp has asked a model's file for: those of its graph.")
        .def_property_readonly(
            "ignored",
            [](py_load_guard & self) {
                self.read();
                return set_of(self.ignored);
            },
            "Keys whose overrides llama.cpp ignores, since the file's value has another type, and both types.")
        .def_property_readonly(
            "asserted",
            [](py_load_guard & self) {
                self.read();
                return self.asserted;
            },
            "Whether an assertion has failed.");

    m.def(
        "read_weights",
        [](const std::string & path) {
            std::vector<std::tuple<std::string, int, int64_t, size_t>> found;
            const gguf_file                                            file(path);
            for (const ggml_tensor * t : file.tensors()) {
                if (ggml_n_dims(t) > 1) {
                    found.emplace_back(t->name, t->type, ggml_nelements(t), ggml_nbytes(t));
                }
            }
            return found;
        },
        py::arg("path"), py::call_guard<nogil>(), R"pbdoc(
            Return the tensors of a GGUF file that have several dimensions: the name, the ggml type, the number of
            weights and that of bytes of each. Of a split file it returns those of this part.

            Raises ModelFileError if the file cannot be read.
        )pbdoc");

    m.def(
        "read_arch",
        [](const fs_path & path) {
            const std::string arch = gguf_file(path).get_str("general.architecture").value_or("");
            return text_of(arch);
        },
        py::arg("path"),
        R"pbdoc(
            Read the architecture that a GGUF file names; empty if it names none.

            Raises ModelFileError if it is no GGUF file.
        )pbdoc");

    m.def(
        "header_size", [](const fs_path & path) { return gguf_file(path).data_offset(); }, py::arg("path"),
        py::call_guard<nogil>(),
        "Return how many bytes the header of a GGUF file takes. Raises ModelFileError if it is no GGUF file.");

    m.def(
        "tensor_names",
        [](const fs_path & path) {
            const gguf_file           file(path);
            py::typing::List<py::str> res;
            for (const ggml_tensor * tensor : file.tensors()) {
                res.append(text_of(tensor->name));
            }
            return res;
        },
        py::arg("path"), "Return the names of the tensors that a GGUF file has. Raises ModelFileError.");

    m.def(
        "check_header",
        [](const fs_path & path, const kv_overrides & overrides) { return check_header(path, overrides); },
        py::arg("path"), py::arg("overrides") = kv_overrides(), py::call_guard<nogil>(),
        "Check the numbers in a model's header against each other, as llama.cpp's loader asserts them, its vocabulary "
        "and the other files of a split model. Raises ModelFileError; returns how many bytes the header takes.");

    m.def(
        "check_adapter",
        [](const fs_path & path, const std::string & model_path) {
            py::typing::List<py::str> res;
            for (const std::string & name : check_adapter(path, model_path)) {
                res.append(text_of(name));
            }
            return res;
        },
        py::arg("path"), py::arg("model_path"), R"pbdoc(
            Check a LoRA adapter's file for a model: its keys, and the types, values and numbers of its matrices.
            Return the names of the tensors that llama.cpp leaves out. Raises ModelFileError.
        )pbdoc");

    m.def(
        "read_projector",
        [](const fs_path & path) {
            const projector_info info = read_projector_info(path);
            return py::make_tuple(info.vision, info.audio);
        },
        py::arg("path"),
        "Return a multimodal projector's types for images and for sounds, as its file names them; empty = it has none. "
        "Raises ModelFileError.");

    // an address, since it is written to a ctypes struct of llama_cpp
    m.attr("BLANK_LEAVES") = reinterpret_cast<uintptr_t>(&blank_leaves);

    m.def(
        "tokenize",
        [](uintptr_t vocab, const py::bytes & text, bool add_special, bool parse_special) {
            const std::string        s = text;
            std::vector<llama_token> tokens;
            {
                const nogil release;
                tokens = tokenize(vocab_at(vocab), s, add_special, parse_special);
            }
            py::typing::List<py::int_> res(tokens.size());
            for (size_t i = 0; i < tokens.size(); ++i) {
                res[i] = tokens[i];
            }
            return res;
        },
        py::arg("vocab"), py::arg("text"), py::arg("add_special"), py::arg("parse_special"),
        "Tokenize a text. Raises ModelFileError if the vocabulary cannot tokenize it, where llama.cpp would abort, and "
        "ValueError for too many characters in a row that are all whitespace or all not.");

    m.def(
        "with_stack_for",
        [](const py::bytes & text, const py::typing::Callable<void()> & work) {
            const std::string s = text;
            const nogil       release;
            with_stack_for(s, [&] {
                const py::gil_scoped_acquire gil;
                work();
            });
        },
        py::arg("text"), py::arg("work"),
        R"pbdoc(
            Call a function that has llama.cpp tokenize a text, on a thread with a stack that its regular expressions do
            not overflow. Raises ValueError for a text with too many characters in a row that are all whitespace or all
            not.
        )pbdoc");

    m.def(
        "token_to_piece",
        [](uintptr_t vocab, llama_token token, bool special) {
            return py::bytes(token_to_piece(vocab_at(vocab), token, special));
        },
        py::arg("vocab"), py::arg("token"), py::arg("special"),
        "Return the bytes of a token's text, of any length; a special token has some only if `special` is True.");

    m.def(
        "eog_tokens",
        [](uintptr_t vocab) {
            const nogil release;
            return eog_tokens(vocab_at(vocab));
        },
        py::arg("vocab"), "Return the tokens that end a text.");

    m.def(
        "bounds_of_tokens",
        [](uintptr_t vocab) {
            token_bounds bounds;
            {
                const nogil release;
                bounds = bounds_of_tokens(vocab_at(vocab));
            }
            return py::typing::Tuple<size_t, py::bytes, bool>(
                py::make_tuple(bounds.n_bytes_max, py::bytes(bounds.single), bounds.strips));
        },
        py::arg("vocab"),
        "Return of all tokens the bytes of the longest one, the bytes that are tokens by themselves, and whether some "
        "swallow white space beside them.");
}

} // namespace eagle3::python
