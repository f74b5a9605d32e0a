#pragma once

#include "busy_flag.h"
#include "draft/drafter.h"

#include <string>

namespace eagle3::python {

// a drafter and the flag that keeps a second thread out
struct py_drafter {
    py_drafter(const std::string & path, const llama_model * model_tgt, int32_t n_ctx, const drafter_params & params) :
        impl(path, model_tgt, n_ctx, params) {}

    drafter   impl;
    busy_flag busy;
};

} // namespace eagle3::python
