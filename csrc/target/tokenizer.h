#pragma once

#include "llama.h"

#include <functional>
#include <string>
#include <vector>

namespace eagle3 {

// Calls what has llama.cpp tokenize a text, on a stack that its regular expressions do not overflow: they go as deep as
// the text has characters without a change between whitespace and others. A text with too many is a
// std::invalid_argument
void with_stack_for(const std::string & text, const std::function<void()> & work);

// What llama.cpp's functions of these names do, but a vocabulary that lacks what they need is a model_file_error, where
// they end the process. token_to_piece gives texts of any length

std::vector<llama_token> tokenize(const llama_vocab * vocab, const std::string & text, bool add_special,
                                  bool parse_special);

std::string token_to_piece(const llama_vocab * vocab, llama_token token, bool special);

} // namespace eagle3
