#pragma once

#include "system.h"

#include <exception>
#include <stdexcept>

namespace eagle3 {

// Runs work that recurses deeply on a thread with a large stack, of which only the touched part takes memory.
template <typename F>
void on_own_stack(size_t size, F && work) {
    struct job {
        F &                work;
        std::exception_ptr error;
    } job{ work, nullptr };

    const auto run = [](void * arg) {
        auto & j = *static_cast<struct job *>(arg);
        try {
            j.work();
        } catch (...) {
            j.error = std::current_exception();
        }
    };
    if (!run_on_stack(size, run, &job)) {
        throw std::runtime_error("cannot start a thread: too many threads, or too little memory");
    }
    if (job.error) {
        std::rethrow_exception(job.error);
    }
}

} // namespace eagle3
