// In place of grammar/lookahead.h, which needs llama.cpp: no recorded text has a grammar.

#pragma once

#include "llama.h"

#include <vector>

namespace eagle3 {

class grammar_lookahead {
  public:
    bool redraws() const { return false; }

    std::vector<bool> allowed(const std::vector<llama_token> & /*path*/, const std::vector<llama_token> & tokens) {
        return std::vector<bool>(tokens.size(), true);
    }
};

} // namespace eagle3
