#include "target/tokenizer.h"

#include "error.h"
#include "load_guard.h"

#include <limits>

namespace eagle3 {

static model_file_error lacking(const char * what, const char * why) {
    return model_file_error(format(
        "the model's vocabulary lacks what llama.cpp needs to %s: %s. Use a file of the model whose tokenizer is "
        "complete, or give tokens instead of text.",
        what, why));
}

std::vector<llama_token> tokenize(const llama_vocab * vocab, const std::string & text, bool add_special,
                                  bool parse_special) {
    constexpr size_t n_max = std::numeric_limits<int32_t>::max() / 2;
    if (text.size() > n_max) {
        throw std::invalid_argument(
            format("a text of %zu bytes cannot be tokenized in one piece: %zu can", text.size(), n_max));
    }
    std::vector<llama_token> tokens(text.size() + 4);
    const auto               run = [&] {
        return llama_tokenize(vocab, text.data(), static_cast<int32_t>(text.size()), tokens.data(),
                              static_cast<int32_t>(tokens.size()), add_special, parse_special);
    };
    try {
        const abort_guard guard;
        int32_t           n = run();
        if (n < 0 && n > std::numeric_limits<int32_t>::min()) {
            tokens.resize(-n);
            n = run();
        }
        if (n < 0) {
            throw error("it became too many tokens");
        }
        tokens.resize(n);
    } catch (const std::exception & e) {
        throw lacking("tokenize this text", e.what());
    }
    for (llama_token id : tokens) {
        if (id < 0 || id >= llama_vocab_n_tokens(vocab)) {
            throw lacking("tokenize this text", format("it became token %d", id).c_str());
        }
    }
    return tokens;
}

std::string token_to_piece(const llama_vocab * vocab, llama_token token, bool special) {
    if (token < 0 || token >= llama_vocab_n_tokens(vocab)) {
        throw std::invalid_argument(
            format("token %d: expected an id in 0 to %d", token, llama_vocab_n_tokens(vocab) - 1));
    }
    std::string piece(64, '\0');
    const auto  run = [&] {
        return llama_token_to_piece(vocab, token, piece.data(), static_cast<int32_t>(piece.size()), /*lstrip =*/0,
                                    special);
    };
    try {
        const abort_guard guard;
        int32_t           n = run();
        if (n < 0) {
            piece.resize(-n);
            n = run();
        }
        piece.resize(std::max(0, n));
    } catch (const std::exception & e) {
        throw lacking(format("say what token %d stands for", token).c_str(), e.what());
    }
    return piece;
}

} // namespace eagle3
