// The few functions of llama.cpp's common.cpp and log.cpp that its chat code calls: those two files need much more.

#include "common.h"

#include "log.h"

#include <cstdarg>
#include <cstdio>
#include <limits>

std::string string_join(const std::vector<std::string> & values, const std::string & separator) {
    std::string result;
    for (size_t i = 0; i < values.size(); ++i) {
        result += i == 0 ? values[i] : separator + values[i];
    }
    return result;
}

std::vector<std::string> string_split(const std::string & str, const std::string & delimiter) {
    std::vector<std::string> parts;
    size_t                   start = 0;
    for (size_t end; (end = str.find(delimiter, start)) != std::string::npos; start = end + delimiter.size()) {
        parts.push_back(str.substr(start, end - start));
    }
    parts.push_back(str.substr(start));
    return parts;
}

std::string string_repeat(const std::string & str, size_t n) {
    std::string result;
    for (size_t i = 0; i < n; ++i) {
        result += str;
    }
    return result;
}

void string_replace_all(std::string & s, const std::string & search, const std::string & replace) {
    if (!search.empty()) {
        s = string_join(string_split(s, search), replace);
    }
}

llama_tokens common_tokenize(const llama_vocab * vocab, const std::string & text, bool add_special,
                             bool parse_special) {
    llama_tokens tokens(text.size() + 2);
    const auto   tokenize = [&] {
        return llama_tokenize(vocab, text.data(), static_cast<int32_t>(text.size()), tokens.data(),
                              static_cast<int32_t>(tokens.size()), add_special, parse_special);
    };
    int32_t n = tokenize();
    if (n < 0 && n != std::numeric_limits<int32_t>::min()) {
        tokens.resize(static_cast<size_t>(-n));
        n = tokenize();
    }
    if (n < 0) {
        throw std::runtime_error("the text is too long to be tokenized");
    }
    tokens.resize(static_cast<size_t>(n));
    return tokens;
}

std::string common_token_to_piece(const llama_vocab * vocab, llama_token token, bool special) {
    std::string piece(32, '\0');
    const auto  read = [&] {
        return llama_token_to_piece(vocab, token, piece.data(), static_cast<int32_t>(piece.size()), 0, special);
    };
    int32_t n = read();
    if (n < 0) {
        piece.resize(static_cast<size_t>(-n));
        n = read();
    }
    piece.resize(static_cast<size_t>(n));
    return piece;
}

// Sends warnings and errors where those of libllama go.

int common_log_get_verbosity_thold() {
    return LOG_LEVEL_WARN;
}

common_log * common_log_main() {
    return nullptr;
}

void common_log_add(common_log *, ggml_log_level level, const char * fmt, ...) {
    std::string text(1024, '\0'); // some messages quote a whole template
    va_list     args;
    va_start(args, fmt);
    const int n = vsnprintf(text.data(), text.size(), fmt, args);
    va_end(args);
    text.resize(std::min(static_cast<size_t>(std::max(n, 0)), text.size() - 1));
    if (n > static_cast<int>(text.size())) {
        while ((static_cast<unsigned char>(text.back()) & 0xc0) == 0x80) {
            text.pop_back(); // cuts between two characters
        }
        text.back() = '\n';
    }
    ggml_log_callback callback  = nullptr;
    void *            user_data = nullptr;
    llama_log_get(&callback, &user_data);
    if (callback) {
        callback(level, text.c_str(), user_data);
    }
}
