#include "nogil.h"

#include <atomic>
#include <chrono>
#include <thread>

#ifndef _WIN32
#include <pthread.h>
#endif

namespace eagle3::python {

namespace {

std::atomic<int>             n_inside  = 0; // threads that compute, or wait for the GIL after that
std::atomic<bool>            is_ending = false;
std::atomic<std::thread::id> ending_thread;

#ifndef _WIN32
// A forked process does not have the other threads.
[[maybe_unused]] const int at_fork_leave = pthread_atfork(nullptr, nullptr, [] { n_inside = 0; });
#endif

// After end_threads() only the thread that called it goes on.
void stop_if_ending() {
    if (is_ending && std::this_thread::get_id() != ending_thread.load()) {
        --n_inside;
        for (;;) {
            std::this_thread::sleep_for(std::chrono::hours(1));
        }
    }
}

} // namespace

nogil::nogil() {
    ++n_inside;
    state = PyEval_SaveThread();
    stop_if_ending();
}

nogil::~nogil() {
    stop_if_ending();
    PyEval_RestoreThread(state);
    --n_inside;
}

void end_threads() {
    ending_thread = std::this_thread::get_id();
    is_ending     = true;
    while (n_inside > 0) {
        PyThreadState * state = PyEval_SaveThread();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        PyEval_RestoreThread(state);
        if (PyErr_CheckSignals() != 0) {
            throw pybind11::error_already_set();
        }
    }
}

} // namespace eagle3::python
