#pragma once

// Included before each of llama.cpp's files that _chat is compiled from: assertions throw instead of ending the
// process, and strings are made by this module's operator new (template_memory.cpp).

#include <cstddef>

#ifdef __GLIBCXX__
#undef _GLIBCXX_EXTERN_TEMPLATE
#define _GLIBCXX_EXTERN_TEMPLATE 0
#endif

#include "ggml.h"

#include <stdexcept>
#include <string>

#undef GGML_ABORT
#define GGML_ABORT(...) throw std::runtime_error(std::string("llama.cpp's chat code: internal error at ") + __func__)
