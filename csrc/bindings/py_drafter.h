#pragma once

#include "busy_flag.h"
#include "draft/drafter.h"
#include "error.h"

#include <memory>
#include <string>

namespace eagle3::python {

// a drafter and the flag that keeps a second thread out
struct py_drafter {
    py_drafter(const std::string & path, const llama_model * model_tgt, int32_t n_ctx, const drafter_params & params) :
        impl_(std::make_unique<drafter>(path, model_tgt, n_ctx, params)) {}

    drafter & impl() const {
        if (!impl_) {
            throw error("the drafter is closed, as is the model that it drafts for");
        }
        return *impl_;
    }

    // before the model goes whose tables it uses
    void close() {
        const busy_flag::scope scope(busy);
        impl_.reset();
    }

    busy_flag busy;

  private:
    std::unique_ptr<drafter> impl_;
};

} // namespace eagle3::python
