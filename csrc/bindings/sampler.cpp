#include "grammar/sampler.h"

#include "module.h"
#include "nogil.h"

#include <pybind11/stl.h>

namespace eagle3::python {

void register_sampler(py::module_ & m) {
    const auto without_gil = py::call_guard<nogil>();

    m.def(
        "grammar_sampler",
        [](uintptr_t vocab, const std::string & grammar, const std::string & root, bool lazy,
           const std::vector<std::string> & trigger_patterns, const std::vector<llama_token> & trigger_tokens) {
            return reinterpret_cast<uintptr_t>(grammar_sampler_init(
                reinterpret_cast<const llama_vocab *>(vocab), grammar, root, lazy, trigger_patterns, trigger_tokens));
        },
        py::arg("vocab"), py::arg("grammar"), py::arg("root") = "root", py::arg("lazy") = false,
        py::arg("trigger_patterns") = std::vector<std::string>(),
        py::arg("trigger_tokens")   = std::vector<llama_token>(), without_gil,
        "Address of a new llama_sampler for a grammar in GBNF.");
    m.def(
        "sampler_accept",
        [](uintptr_t sampler, llama_token token) {
            llama_sampler_accept(reinterpret_cast<llama_sampler *>(sampler), token);
        },
        py::arg("sampler"), py::arg("token"), without_gil, "llama_sampler_accept, of samplers that may throw.");
}

} // namespace eagle3::python
