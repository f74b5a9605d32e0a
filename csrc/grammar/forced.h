#pragma once

#include "grammar/white_space.h"

#include "llama.h"

#include <string>
#include <vector>

namespace eagle3 {

// What a constraint lets follow a text. Another kind of constraint need only make this to draft too.
struct forced_text {
    std::string              text;
    std::vector<float>       p; // of each byte: how likely it is after those before; 1: nothing else may come
    float                    p_end = 0.0f; // how likely it ends then
    std::vector<std::string> next;         // some characters that may come after the text
};

// The text that the grammar of a sampler (grammar_sampler_init) forces next: as long as only one character may come.
// Where besides one there may be white space, the text's habit decides, and where there may be white space before
// several, that alone is guessed. So is an end that is not forced.
//
// Empty where more may come, where the text may end already, and while a lazy grammar waits for its trigger. Throws if
// the grammar is too ambiguous.
forced_text find_forced(const llama_sampler * grammar, const white_space & habit);

} // namespace eagle3
