// llama.cpp's own grammar code, from the sources of the dependency, compiled again so that it always ends: its
// assertions, which are in its innermost loops, check the budget, and throw instead of ending the process.

#include "grammar/llama_grammar.h"
#include "error.h"
#include "grammar/budget.h"
#include "grammar/parse_error.h"

#include "ggml.h"

#undef GGML_ABORT
#undef GGML_ASSERT
#define GGML_ABORT(...) throw eagle3::error("llama.cpp's grammar code was given what the grammar does not allow")
#define GGML_ASSERT(x)                                                                                                 \
    do {                                                                                                               \
        eagle3::grammar_budget::tick();                                                                                \
        if (!(x)) {                                                                                                    \
            GGML_ABORT("");                                                                                            \
        }                                                                                                              \
    } while (0)

#include <cstdio>
#define fprintf(file, ...) eagle3::keep_parse_error(__VA_ARGS__)

#include "llama-grammar.cpp"

namespace eagle3 {

std::pair<std::vector<uint32_t>, llama_partial_utf8> decode_piece(const std::string &        text,
                                                                  const llama_partial_utf8 & before) {
    return decode_utf8(text, before);
}

bool matches(const llama_grammar_element * pos, uint32_t c) {
    return llama_grammar_match_char(pos, c).first;
}

bool may_match(const llama_grammar_element * pos, const llama_partial_utf8 & part) {
    return (part.n_remain < 3 || part.value <= 4) && llama_grammar_match_partial_char(pos, part); // else beyond Unicode
}

} // namespace eagle3
