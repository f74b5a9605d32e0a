#pragma once

// Everything that can go wrong, as C++ exceptions. csrc/bindings/module.cpp turns each into the Python class of the
// same name in llama_cpp_eagle3/errors.py; std::invalid_argument becomes ValueError.

#include <cstdarg>
#include <cstdio>
#include <stdexcept>
#include <string>

namespace eagle3 {

struct error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// A file is missing, truncated, not GGUF, of the wrong architecture, or has a bad key or tensor.
struct model_file_error : error {
    using error::error;
};

// Drafter and target do not fit together.
struct incompatible_draft_error : error {
    using error::error;
};

// The context has no room for what was requested.
struct context_full_error : error {
    using error::error;
};

// The target computed logits that are all NaN, or that samplers cannot sort.
struct logits_error : error {
    using error::error;
};

// The loaded libllama is not the version that this module was written for.
struct library_mismatch_error : error {
    using error::error;
};

// Two threads used one object at once.
struct busy_error : error {
    using error::error;
};

#if defined(__GNUC__) || defined(__clang__)
__attribute__((format(printf, 1, 2)))
#endif
inline std::string format(const char * fmt, ...) {
    va_list args;
    va_start(args, fmt);
    va_list args_copy;
    va_copy(args_copy, args);
    const int n = vsnprintf(nullptr, 0, fmt, args_copy);
    va_end(args_copy);
    std::string out(n > 0 ? n : 0, '\0');
    vsnprintf(&out[0], out.size() + 1, fmt, args);
    va_end(args);
    return out;
}

} // namespace eagle3
