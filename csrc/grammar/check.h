#pragma once

#include <string>

namespace eagle3 {

// Throws std::invalid_argument for a grammar in GBNF with which llama.cpp's parser would not come to an end: more
// repetitions from than to, more copies than memory, brackets deeper than the stack, rules that begin with themselves,
// or that can begin in too many ways. Everything else that is wrong is for that parser to find.
void check_grammar(const std::string & text);

} // namespace eagle3
