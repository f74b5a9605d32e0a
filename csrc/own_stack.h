#pragma once

#include <pthread.h>

#include <exception>
#include <stdexcept>

namespace eagle3 {

// Work that goes deep, on a thread with a stack of its own, of which only what is touched becomes memory
template <typename F>
void on_own_stack(size_t size, F && work) {
    struct job {
        F &                work;
        std::exception_ptr error;
    } job{ work, nullptr };

    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, size);
    pthread_t  thread;
    const auto run = [](void * arg) -> void * {
        auto & j = *static_cast<struct job *>(arg);
        try {
            j.work();
        } catch (...) {
            j.error = std::current_exception();
        }
        return nullptr;
    };
    const int res = pthread_create(&thread, &attr, run, &job);
    pthread_attr_destroy(&attr);
    if (res != 0) {
        throw std::runtime_error("cannot start a thread: too many threads, or too little memory");
    }
    pthread_join(thread, nullptr);
    if (job.error) {
        std::rethrow_exception(job.error);
    }
}

} // namespace eagle3
