#include "target/tokenizer.h"

#include "error.h"
#include "load_guard.h"
#include "own_stack.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>

namespace eagle3 {

static model_file_error lacking(const char * what, const char * why) {
    return model_file_error(format(
        "the model's vocabulary lacks what llama.cpp needs to %s: %s. Use a file of the model whose tokenizer is "
        "complete, or give tokens instead of text.",
        what, why));
}

// Bytes of stack that std::regex needs for a character: 321 with GCC 12 at -O2.
static constexpr size_t N_STACK_CHAR = 1024;
static constexpr size_t N_STACK_ELSE = 1 << 20;
static constexpr size_t N_RUN_SMALL  = 256;     // any stack is enough
static constexpr size_t N_RUN_MAX    = 1 << 20; // a stack of 1 GiB

// The most characters that one match can have. No expression matches more than one change from whitespace to others or
// back, such as punctuation and the newlines after it.
static size_t longest_match(const std::string & text) {
    size_t n = 0, n_before = 0, n_max = 0;
    bool   was_space = false;
    for (const unsigned char c : text) {
        const bool is_space = c == ' ' || (c >= '\t' && c <= '\r');
        if (is_space != was_space) {
            n_before  = n;
            n         = 0;
            was_space = is_space;
        }
        n += (c & 0xC0) != 0x80; // bytes that begin a character
        n_max = std::max(n_max, n_before + n);
    }
    return n_max;
}

void with_stack_for(const std::string & text, const std::function<void()> & work) {
    const size_t n = longest_match(text);
    if (n <= N_RUN_SMALL) {
        work();
        return;
    }
    if (n > N_RUN_MAX) {
        throw std::invalid_argument(format(
            "expected a text with at most %zu characters in a row that are all whitespace or none, found %zu: break it "
            "up, or give tokens instead of text",
            N_RUN_MAX, n));
    }
    on_own_stack(N_STACK_ELSE + n * N_STACK_CHAR, work);
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
    with_stack_for(text, [&] {
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
        } catch (const std::bad_alloc &) {
            throw; // the vocabulary is not the reason
        } catch (const std::exception & e) {
            throw lacking("tokenize this text", e.what());
        }
    });
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
        throw lacking(format("turn token %d into text", token).c_str(), e.what());
    }
    return piece;
}

std::vector<llama_token> eog_tokens(const llama_vocab * vocab) {
    std::vector<llama_token> found;
    for (llama_token token = 0; token < llama_vocab_n_tokens(vocab); ++token) {
        if (llama_vocab_is_eog(vocab, token)) {
            found.push_back(token);
        }
    }
    return found;
}

token_bounds bounds_of_tokens(const llama_vocab * vocab) {
    constexpr int         strips = LLAMA_TOKEN_ATTR_LSTRIP | LLAMA_TOKEN_ATTR_RSTRIP;
    token_bounds          res;
    std::array<bool, 256> is_token{};
    for (llama_token token = 0; token < llama_vocab_n_tokens(vocab); ++token) {
        const std::string piece = token_to_piece(vocab, token, /*special =*/true);
        res.strips |= (llama_vocab_get_attr(vocab, token) & strips) != 0;
        res.n_bytes_max = std::max({ res.n_bytes_max, piece.size(), std::strlen(llama_vocab_get_text(vocab, token)) });
        if (piece.size() == 1) {
            is_token[static_cast<uint8_t>(piece[0])] = true;
        }
    }
    for (size_t i = 0; i < is_token.size(); ++i) {
        if (is_token[i]) {
            res.single += static_cast<char>(i);
        }
    }
    return res;
}

} // namespace eagle3
