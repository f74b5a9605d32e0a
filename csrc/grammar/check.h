#pragma once

#include <string>

namespace eagle3 {

// Throws std::invalid_argument for a GBNF grammar with which llama.cpp's parser would not end or would end the process:
// {m,n} with m > n, too many repetitions for the memory, brackets deeper than the stack, rules that begin with
// themselves, or that can begin in too many ways; or for one of which no text ends. That parser finds everything else
// that is wrong.
void check_grammar(const std::string & text);

} // namespace eagle3
