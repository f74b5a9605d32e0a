#include "busy_flag.h"
#include "error.h"
#include "module.h"

#include <atomic>
#include <string>
#include <utility>

#ifndef _WIN32
#include <pthread.h>
#endif

namespace eagle3::python {

namespace {

std::atomic<int> n_forks = 0; // of which this process is one

// The number of forks when this thread used a model for the first time; -1 = it has not.
thread_local int first_use = -1;

void note_use() {
    if (first_use < 0) {
        first_use = n_forks;
    }
}

#ifndef _WIN32
[[maybe_unused]] const int at_fork = pthread_atfork(nullptr, nullptr, [] { ++n_forks; });
#endif

// In C++, since Python runs signal handlers between the instructions of Python functions: a Ctrl-C there would leave
// the lock taken for ever.
class guard {
  public:
    explicit guard(std::string name) : name_(std::move(name)) { note_use(); }

    bool try_enter() { return !closed && !is_inherited() && busy_.try_set(); }

    // Was it made by a process of which this one is a fork, which lacks its threads?
    bool is_inherited() const { return n_forks_ != n_forks; }

    void enter() {
        if (is_inherited()) {
            throw error(format("this %s was loaded before the process was forked, and the threads that compute for it "
                               "are not in this one, which would wait for them for ever: load the model after a fork, "
                               "or start processes in another way (multiprocessing: 'spawn' or 'forkserver')",
                               name_.c_str()));
        }
        if (!busy_.try_set()) {
            throw busy_error(format("this %s is in use: by another thread, or by the call whose callback you are in. "
                                    "Give each thread its own, or take turns.",
                                    name_.c_str()));
        }
        if (closed) {
            exit();
            const py::object e = py::module_::import("llama_cpp_eagle3.guard").attr("closed_error")(name_);
            PyErr_SetObject(py::type::handle_of(e).ptr(), e.ptr());
            throw py::error_already_set();
        }
        note_use();
    }

    void exit() { busy_.clear(); }

    std::atomic<bool> closed{ false };

  private:
    std::string name_;
    busy_flag   busy_;
    int         n_forks_ = n_forks;
};

// A `with` block that runs whether or not the lock was free.
struct turn {
    guard & of;
    bool    is_in = false;
};

} // namespace

void register_guard(py::module_ & m) {
    py::class_<turn>(m, "GuardTurn", "The context manager of `Guard.if_free`: enters with whether the guard was free.")
        .def("__enter__", [](turn & self) { return self.is_in = self.of.try_enter(); })
        .def("__exit__", [](turn & self, const py::args &) {
            if (std::exchange(self.is_in, false)) {
                self.of.exit();
            }
        });
    py::class_<guard>(m, "Guard", R"pbdoc(
            A lock that nobody waits for: a second caller gets a `BusyError`, from the same thread too.

            Once it is `closed`, every caller gets an `Eagle3Error`. An interrupt never leaves it locked.
        )pbdoc")
        .def(py::init<std::string>(), py::arg("name"))
        .def("__enter__", &guard::enter)
        .def("__exit__", [](guard & self, const py::args &) { self.exit(); })
        .def(
            "if_free", [](guard & self) { return turn{ self }; }, py::keep_alive<0, 1>(),
            "Enter without an error: `with guard.if_free() as is_in`; is_in is False if it is locked.")
        .def_property(
            "closed", [](const guard & self) { return self.closed.load(); },
            [](guard & self, bool closed) { self.closed = closed; }, "Whether the guarded object has been freed.")
        .def_property_readonly("is_inherited", &guard::is_inherited,
                               "Whether this process is a fork of the one that made it: every caller gets an "
                               "`Eagle3Error`.");
    m.def(
        "has_lost_threads", [] { return first_use >= 0 && first_use != n_forks; },
        "Whether the process was forked since this thread used a model: OpenMP keeps threads for it that are not in "
        "this process, and waits for them.");
}

} // namespace eagle3::python
