#pragma once

#include "llama-grammar.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace eagle3 {

// The characters of a token, with a 0 at the end, and the rest of an incomplete last one. before: the part of a
// character after which it comes.
std::pair<std::vector<uint32_t>, llama_partial_utf8> decode_piece(const std::string &        text,
                                                                  const llama_partial_utf8 & before);

// Does the element of a grammar take a character, or one that begins so?
bool matches(const llama_grammar_element * pos, uint32_t c);
bool may_match(const llama_grammar_element * pos, const llama_partial_utf8 & part);

} // namespace eagle3
