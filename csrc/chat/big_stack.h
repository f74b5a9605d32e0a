#pragma once

#include <pthread.h>

#include <exception>
#include <stdexcept>

namespace eagle3::chat {

// llama.cpp's parsers and templates go as deep as their input is nested. A thread of Python's may have half a megabyte
// of stack; this one has enough for MAX_NESTING (measured: less than 3 KiB for each).
constexpr size_t MAX_NESTING    = 10000;
constexpr size_t SMALL_NESTING  = 100;      // any stack is enough
constexpr size_t BIG_STACK_SIZE = 64 << 20; // of which only what is touched becomes memory

template <typename F>
void on_big_stack(F && work) {
    struct job {
        F &                work;
        std::exception_ptr error;
    } job{ work, nullptr };

    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, BIG_STACK_SIZE);
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

} // namespace eagle3::chat
