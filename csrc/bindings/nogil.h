#pragma once

#include <pybind11/pybind11.h>

namespace eagle3::python {

// py::gil_scoped_release for a process that may end meanwhile. If a thread asks for the GIL while the interpreter
// finalizes, Python unwinds its stack, which aborts the process in C++ destructors. After end_threads() threads sleep
// here instead.
class nogil {
  public:
    nogil();
    ~nogil();

    nogil(const nogil &)             = delete;
    nogil & operator=(const nogil &) = delete;

  private:
    PyThreadState * state;
};

// Waits until no other thread computes, and lets none begin. Must be called with the GIL, before the interpreter
// finalizes.
void end_threads();

} // namespace eagle3::python
