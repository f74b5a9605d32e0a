#pragma once

#include "llama-grammar.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace eagle3 {

// the characters of a token that follows a whole one, with a 0 at their end, and what is left of the last one
std::pair<std::vector<uint32_t>, llama_partial_utf8> decode_piece(const std::string & text);

} // namespace eagle3
