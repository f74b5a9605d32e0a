#include "draft/joint_drafter.h"

#include "module.h"
#include "py_drafter.h"

#include <pybind11/stl.h>

namespace eagle3::python {

namespace {

struct py_joint_drafter : py_drafter {
    py_joint_drafter(std::unique_ptr<joint_drafter> impl, py::tuple parts) :
        py_drafter(std::move(impl)), parts(std::move(parts)) {}

    const py::tuple parts;
};

std::unique_ptr<py_joint_drafter> make_drafter(const std::vector<py::object> & parts, int32_t n_embd) {
    std::vector<std::shared_ptr<drafter>> shared;
    for (const py::object & part : parts) {
        shared.push_back(part.cast<py_drafter &>().share());
    }
    return std::make_unique<py_joint_drafter>(std::make_unique<joint_drafter>(std::move(shared), n_embd),
                                              py::tuple(py::cast(parts)));
}

} // namespace

void register_joint_drafter(py::module_ & m) {
    py::class_<py_joint_drafter, py_drafter>(m, "JointDrafter", "Several drafters of one target, held as one.")
        .def(py::init(&make_drafter), py::arg("parts"), py::arg("n_embd"),
             "parts: drafters of the same sequences, which are used through this one from now on, but for begin(), "
             "expand() and nodes; close() leaves them. n_embd: of the target.\n"
             "Raises IncompatibleDraftError.")
        .def_readonly("parts", &py_joint_drafter::parts, "The drafters, in the order of their bits.");
}

} // namespace eagle3::python
