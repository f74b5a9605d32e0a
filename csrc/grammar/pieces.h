#pragma once

#include "llama-grammar.h"

#include <cstdint>
#include <vector>

namespace eagle3 {

// Applies a grammar to all tokens of a vocabulary, with the result of llama_grammar_apply_impl. That decodes each token
// each time. Here each is decoded once for a grammar, and tokens that begin with a refused character are refused
// together.
class grammar_pieces {
  public:
    // vocab must live as long as this
    explicit grammar_pieces(const llama_vocab & vocab) : vocab_(vocab) {}

    // Lowers the logits of what is refused to -INFINITY.
    //
    // grammar: waits for no trigger, and its text ends with a whole character
    void apply(const llama_grammar & grammar, llama_token_data_array * cur_p);

  private:
    enum class kind : uint8_t {
        end_of_generation,
        silent,    // it has no text
        character, // it begins with a character, which is beginnings_[first]
        fragment,  // it is a part of a character
    };

    struct piece {
        kind               what   = kind::silent;
        uint32_t           first  = 0;
        size_t             offset = 0; // of its code points
        llama_partial_utf8 end    = {};
    };

    void              decode();
    std::vector<bool> allowed_beginnings(const llama_grammar & grammar) const;

    const llama_vocab &   vocab_;
    std::vector<piece>    pieces_;      // by token; empty until they are needed
    std::vector<uint32_t> code_points_; // of all tokens, each with a 0 at its end
    std::vector<uint32_t> beginnings_;  // the first characters that there are, each with a 0 at its end
};

} // namespace eagle3
