#pragma once

#include <pybind11/pybind11.h>

namespace eagle3::python {

// py::gil_scoped_release for a process that may end meanwhile. Python ends a thread that asks for the GIL while the
// interpreter finalizes by unwinding its stack, which aborts the process in the destructors of C++. From end_threads()
// on threads sleep here instead.
class nogil {
  public:
    nogil();
    ~nogil();

    nogil(const nogil &)             = delete;
    nogil & operator=(const nogil &) = delete;

  private:
    PyThreadState * state;
};

// The interpreter is about to finalize: wait until no other thread computes, and let none begin. Called with the GIL.
void end_threads();

} // namespace eagle3::python
