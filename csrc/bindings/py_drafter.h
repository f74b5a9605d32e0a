#pragma once

#include "busy_flag.h"
#include "drafter/drafter.h"
#include "error.h"

#include <memory>
#include <utility>

namespace eagle3::python {

// A drafter of any kind, and the flag that keeps a second thread out.
struct py_drafter {
    explicit py_drafter(std::unique_ptr<drafter> impl) : impl_(std::move(impl)) {}

    drafter & impl() const {
        if (!impl_) {
            throw error("the drafter is closed, as is the model that it drafts for");
        }
        return *impl_;
    }

    // Must be called before the model is freed whose tables it uses.
    void close() {
        const busy_flag::scope scope(busy);
        impl_.reset();
    }

    busy_flag busy;

  private:
    std::unique_ptr<drafter> impl_;
};

} // namespace eagle3::python
