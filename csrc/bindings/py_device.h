#pragma once

#include "devices.h"

namespace eagle3::python {

// A ggml device, which lives as long as the process.
struct py_device {
    py_device(ggml_backend_dev_t dev) : dev(dev) {}

    ggml_backend_dev_t dev;
};

} // namespace eagle3::python
