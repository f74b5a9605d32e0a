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

    py::class_<token_tree, std::shared_ptr<token_tree>>(
        m, "TokenTree", "The tokens of a vocabulary by their characters, which all grammars of a model read.")
        .def(py::init([](uintptr_t vocab) {
                 return std::make_shared<token_tree>(*reinterpret_cast<const llama_vocab *>(vocab));
             }),
             py::arg("vocab"), without_gil,
             "Read a vocabulary, by the address of its llama_vocab, which must outlive this object and grammars.");

    m.def(
        "grammar_sampler",
        [](std::shared_ptr<token_tree> tokens, const std::string & grammar, const std::string & root, bool lazy,
           const std::vector<std::string> & trigger_patterns, const std::vector<llama_token> & trigger_tokens,
           size_t n_best) {
            return reinterpret_cast<uintptr_t>(
                grammar_sampler_init(std::move(tokens), grammar, root, lazy, trigger_patterns, trigger_tokens, n_best));
        },
        py::arg("tokens"), py::arg("grammar"), py::arg("root") = "root", py::arg("lazy") = false,
        py::arg("trigger_patterns") = std::vector<std::string>(),
        py::arg("trigger_tokens") = std::vector<llama_token>(), py::arg("n_best") = 0, without_gil,
        R"pbdoc(
            Return the address of a new llama_sampler for a grammar in GBNF, which neither hangs nor ends the process.

            tokens: the vocabulary's. trigger_patterns (regular expressions), trigger_tokens: the triggers that a lazy
            grammar waits for. n_best: if later samplers use only so many of the greatest logits, the
            grammar need not check more; 0 = all. The sampler's methods throw where llama.cpp's grammar sampler would
            end the process.

            Raises ValueError if the grammar cannot be parsed or used, or if a pattern is no regular expression.
        )pbdoc");
    m.def(
        "sampler_accept",
        [](uintptr_t sampler, llama_token token) {
            llama_sampler_accept(reinterpret_cast<llama_sampler *>(sampler), token);
        },
        py::arg("sampler"), py::arg("token"), without_gil, "Call llama_sampler_accept on a sampler that may throw.");

    m.def(
        "grammar_is_waiting",
        [](uintptr_t grammar) { return grammar_is_waiting(reinterpret_cast<const llama_sampler *>(grammar)); },
        py::arg("grammar"),
        "Whether a lazy `grammar_sampler` has not been triggered yet, so that it allows every token.");
    py::class_<grammar_lookahead, std::shared_ptr<grammar_lookahead>>(
        m, "GrammarLookahead", "Tells which tokens a grammar allows after tokens that are not drawn yet.")
        .def(py::init([](uintptr_t sampler, bool redraws) {
                 return std::make_shared<grammar_lookahead>(reinterpret_cast<llama_sampler *>(sampler), redraws);
             }),
             py::arg("sampler"), py::kw_only(), py::arg("redraws"), R"pbdoc(
            Look ahead in the grammar of a sampler, from where its text is now; the sampler must outlive this object.

            redraws: whether the grammar is asked about drawn tokens, and another token is drawn if it refuses one; else
            it is applied before the draw.
        )pbdoc")
        .def("allowed", &grammar_lookahead::allowed, py::arg("path"), py::arg("tokens"), without_gil,
             "Return for each of the tokens whether it may come after the path; if that cannot be known, all may.");

    m.def("philox4x32", &philox4x32, py::arg("counter"), py::arg("key"),
          "Return Philox4x32-10's four random words of 32 bits, for a counter of four words and a key of two.");
    py::class_<gumbel_noise, std::shared_ptr<gumbel_noise>>(m, "GumbelNoise", R"pbdoc(
            The random noise of one text, which its draws and its drafts share.

            The token with the greatest logit / temperature + noise is drawn with its probability in the softmax
            (Gumbel-max).
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
             "Make the noise of a seed. The other arguments are the samplers' between logits and draw, for drafts "
             "alone: the draw itself only adds the noise.")
        .def("__call__", &gumbel_noise::operator(), py::arg("token"), py::arg("n_ahead") = 0, py::arg("attempt") = 0,
             "Return the noise of a token after n_ahead others that are not drawn yet; attempt: refused draws before "
             "this one.")
        .def_readwrite("position", &gumbel_noise::position, "The number of tokens that were drawn for the text.")
        .def(
            "sampler",
            [](const std::shared_ptr<gumbel_noise> & noise) {
                return reinterpret_cast<uintptr_t>(gumbel_sampler_init(noise));
            },
            "Return the address of a new llama_sampler that draws with this noise, and advances it with each accepted "
            "token.");
}

} // namespace eagle3::python
