#pragma once

// Comes before every file of llama.cpp's that _chat is compiled from: what would end the process there throws here.

#include "ggml.h"

#include <stdexcept>
#include <string>

#undef GGML_ABORT
#define GGML_ABORT(...) throw std::runtime_error(std::string("llama.cpp's chat code: internal error at ") + __func__)
