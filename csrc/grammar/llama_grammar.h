#pragma once

#include "llama-grammar.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace eagle3 {

// The characters of a token after a complete character, with a 0 at the end, and the rest of an incomplete last one.
std::pair<std::vector<uint32_t>, llama_partial_utf8> decode_piece(const std::string & text);

} // namespace eagle3
