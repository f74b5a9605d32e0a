#include "grammar/sampler.h"
#include "error.h"
#include "grammar/lookahead.h"
#include "gumbel.h"

#include "module.h"
#include "nogil.h"

#include <pybind11/stl.h>

namespace eagle3::python {

void register_sampler(py::module_ & m) {
    const auto without_gil = py::call_guard<nogil>();

    m.def(
        "grammar_sampler",
        [](uintptr_t vocab, const std::string & grammar, const std::string & root, bool lazy,
           const std::vector<std::string> & trigger_patterns, const std::vector<llama_token> & trigger_tokens,
           size_t n_best) {
            return reinterpret_cast<uintptr_t>(grammar_sampler_init(reinterpret_cast<const llama_vocab *>(vocab),
                                                                    grammar, root, lazy, trigger_patterns,
                                                                    trigger_tokens, n_best));
        },
        py::arg("vocab"), py::arg("grammar"), py::arg("root") = "root", py::arg("lazy") = false,
        py::arg("trigger_patterns") = std::vector<std::string>(),
        py::arg("trigger_tokens") = std::vector<llama_token>(), py::arg("n_best") = 0, without_gil,
        R"pbdoc(
            Return the address of a new llama_sampler for a grammar in GBNF, which neither hangs nor ends the process.

            vocab: address of the llama_vocab; trigger_patterns (regular expressions) and trigger_tokens: what a lazy
            grammar waits for. n_best: what is applied after it looks at so many of the greatest logits alone, so that
            it may leave no more of them; 0: at all. Its methods throw where llama.cpp's grammar sampler would end the
            process.

            Raises:
                ValueError: the grammar cannot be parsed, or cannot be used; or a pattern is no regular expression.
        )pbdoc");
    m.def(
        "sampler_accept",
        [](uintptr_t sampler, llama_token token) {
            llama_sampler_accept(reinterpret_cast<llama_sampler *>(sampler), token);
        },
        py::arg("sampler"), py::arg("token"), without_gil, "Llama_sampler_accept, of samplers that may throw.");

    m.def(
        "grammar_is_waiting",
        [](uintptr_t grammar) { return grammar_is_waiting(reinterpret_cast<const llama_sampler *>(grammar)); },
        py::arg("grammar"), "Whether a `grammar_sampler` is lazy and was not triggered, so that it allows everything.");
    py::class_<grammar_lookahead, std::shared_ptr<grammar_lookahead>>(
        m, "GrammarLookahead", "Which tokens a grammar allows after tokens that are not drawn yet.")
        .def(py::init([](uintptr_t sampler, bool redraws) {
                 return std::make_shared<grammar_lookahead>(reinterpret_cast<llama_sampler *>(sampler), redraws);
             }),
             py::arg("sampler"), py::kw_only(), py::arg("redraws"), R"pbdoc(
            The sampler applies the grammar, as far as its text has come, and must outlive this.

            redraws: it is asked about a token that was drawn, and if it refuses that, another one is drawn; else it
            comes before the draw.
        )pbdoc")
        .def("allowed", &grammar_lookahead::allowed, py::arg("path"), py::arg("tokens"), without_gil,
             "Whether each of the tokens may come after the path. Where that cannot be known, all may.");

    m.def("philox4x32", &philox4x32, py::arg("counter"), py::arg("key"),
          "Philox4x32-10: four random words of 32 bits for a counter of four and a key of two.");
    py::class_<gumbel_noise, std::shared_ptr<gumbel_noise>>(m, "GumbelNoise", R"pbdoc(
            The dice of one text, which its draws and its drafts share.

            The token with the greatest logit / temperature + noise is one drawn from the softmax.
        )pbdoc")
        .def(py::init([](uint32_t seed, float temperature, int32_t top_k, float top_p, float min_p,
                         std::unordered_map<llama_token, float> biases) {
                 if (!(temperature > 0.0f)) {
                     throw std::invalid_argument(
                         format("expected the temperature to be greater than 0, found %g", temperature));
                 }
                 return std::make_shared<gumbel_noise>(
                     gumbel_noise{ seed, 0, temperature, top_k, top_p, min_p, std::move(biases) });
             }),
             py::arg("seed"), py::kw_only(), py::arg("temperature") = 1.0f, py::arg("top_k") = 0,
             py::arg("top_p") = 1.0f, py::arg("min_p") = 0.0f,
             py::arg("biases") = std::unordered_map<llama_token, float>(),
             "What comes between logits and the draw is for drafts: the draw itself only adds the noise.")
        .def("__call__", &gumbel_noise::operator(), py::arg("token"), py::arg("n_ahead") = 0, py::arg("attempt") = 0,
             "The noise of a token after n_ahead others that are not drawn yet; attempt: draws that were refused.")
        .def_readwrite("position", &gumbel_noise::position, "Tokens of the text that were drawn.")
        .def(
            "sampler",
            [](const std::shared_ptr<gumbel_noise> & noise) {
                return reinterpret_cast<uintptr_t>(gumbel_sampler_init(noise));
            },
            "Address of a new llama_sampler that draws with it, and moves it on with each token that it accepts.");
}

} // namespace eagle3::python
