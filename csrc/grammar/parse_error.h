#pragma once

#include <string>

namespace eagle3 {

// Keeps the message that llama.cpp's grammar parser would print to stderr, together with the whole grammar.
void        keep_parse_error(const char * fmt, ...);
std::string take_parse_error();

} // namespace eagle3
