#pragma once

#include "llama.h"

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace eagle3 {

// Calls `work`, which lets llama.cpp tokenize a text, on a stack that is large enough for its regular expressions:
// these recurse once for each character between two changes from whitespace to others or back. Throws
// std::invalid_argument if there are too many.
void with_stack_for(const std::string & text, const std::function<void()> & work);

// Do what llama.cpp's functions of these names do, but throw model_file_error for a vocabulary that lacks what they
// need, where those end the process. token_to_piece returns texts of any length.

std::vector<llama_token> tokenize(const llama_vocab * vocab, const std::string & text, bool add_special,
                                  bool parse_special);

std::string token_to_piece(const llama_vocab * vocab, llama_token token, bool special);

// Tokens that end a text.
std::vector<llama_token> eog_tokens(const llama_vocab * vocab);

// What single tokens stand for, of all tokens of a vocabulary.
struct token_bounds {
    size_t      n_bytes_max = 1; // of the longest one, as it is written or as the vocabulary spells it
    std::string single;          // the bytes that are tokens
    bool        strips = false;  // whether some swallow white space beside them
};

token_bounds bounds_of_tokens(const llama_vocab * vocab);

} // namespace eagle3
