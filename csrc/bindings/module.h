#pragma once

#include <pybind11/pybind11.h>

namespace eagle3::python {

namespace py = pybind11;

// Each registers a class, or a small group, that Python sees, and is in the file of the same name.
void register_assistant(py::module_ & m);
void register_devices(py::module_ & m);
void register_feature_tap(py::module_ & m);
void register_target(py::module_ & m);
void register_target_info(py::module_ & m);
void register_grammar(py::module_ & m);
void register_guard(py::module_ & m);
void register_head(py::module_ & m);
void register_kernels(py::module_ & m);
void register_model_files(py::module_ & m);
void register_drafter(py::module_ & m);
void register_eagle3_drafter(py::module_ & m);
void register_dflash(py::module_ & m);
void register_mtp_drafter(py::module_ & m);
void register_simple_drafter(py::module_ & m);
void register_policy(py::module_ & m);
void register_sampler(py::module_ & m);
void register_sound(py::module_ & m);
void register_text(py::module_ & m);

} // namespace eagle3::python
