#pragma once

// Texts of JSON from clients, before Python's parser, which holds the interpreter's lock, or llama.cpp's reads them.

#include <nlohmann/json.hpp>

#include <algorithm>

#include <string>
#include <string_view>
#include <tuple>

namespace eagle3::chat {

// What a text of JSON asks of a parser, without its strings.
struct json_size {
    size_t n_levels = 0; // of brackets within brackets
    size_t n_values = 0; // commas and opening brackets, which are about as many
    size_t n_names  = 0; // names of objects, and numbers with a fraction, which take much longer than other values
    size_t n_digits = 0; // of its longest number
};

inline json_size size_of_json(std::string_view json) {
    json_size found;
    size_t    depth     = 0;
    bool      in_string = false;
    for (size_t i = 0; i < json.size(); ++i) {
        const char c = json[i];
        if (in_string) {
            i += c == '\\'; // skips the escaped character
            in_string = c != '"';
        } else if (c == '"') {
            in_string = true;
        } else if (c == '[' || c == '{') {
            ++found.n_values;
            found.n_levels = std::max(found.n_levels, ++depth);
        } else if (c == ']' || c == '}') {
            depth -= depth > 0;
        } else if (c == ',') {
            ++found.n_values;
        } else if (c == ':') {
            ++found.n_names;
        } else if (c == '-' || (c >= '0' && c <= '9')) {
            const size_t end = std::min(json.find_first_not_of("0123456789+-.eE", i), json.size());
            found.n_digits   = std::max(found.n_digits, end - i);
            found.n_names += json.substr(i, end - i).find_first_of(".eE") != std::string_view::npos;
            i = end - 1;
        }
    }
    return found;
}

// Follows the parser that llama.cpp uses, which neither recurses nor keeps values here.
struct follower {
    using json = nlohmann::json;

    size_t depth    = 0;
    size_t n_levels = 0;

    bool open() {
        n_levels = std::max(n_levels, ++depth);
        return true;
    }

    bool close() {
        --depth;
        return true;
    }

    // NOLINTBEGIN: the names of nlohmann's interface
    bool null() { return true; }
    bool boolean(bool) { return true; }
    bool number_integer(json::number_integer_t) { return true; }
    bool number_unsigned(json::number_unsigned_t) { return true; }
    bool number_float(json::number_float_t, const json::string_t &) { return true; }
    bool string(json::string_t &) { return true; }
    bool binary(json::binary_t &) { return true; }
    bool key(json::string_t &) { return true; }
    bool start_object(size_t) { return open(); }
    bool end_object() { return close(); }
    bool start_array(size_t) { return open(); }
    bool end_array() { return close(); }
    bool parse_error(size_t, const std::string &, const nlohmann::detail::exception &) { return false; }
    // NOLINTEND
};

// Whether llama.cpp parses a text, and the levels of brackets before that ends.
inline std::tuple<bool, size_t> parsed_levels(std::string_view text) {
    follower   seen;
    const bool is_json = nlohmann::json::sax_parse(text.begin(), text.end(), &seen);
    return { is_json, seen.n_levels };
}

// Whether an escape of a surrogate begins here: 1 for the first of a pair, 2 for the second, 0: none.
inline int surrogate_at(std::string_view text, size_t i) {
    const auto is_one_of = [&](size_t at, std::string_view chars) {
        return chars.find(text[at]) != std::string_view::npos;
    };
    const std::string_view hex = "0123456789abcdefABCDEF";
    if (text.size() < i + 6 || text[i] != '\\' || text[i + 1] != 'u' || !is_one_of(i + 2, "dD") ||
        !is_one_of(i + 4, hex) || !is_one_of(i + 5, hex)) {
        return 0;
    }
    return is_one_of(i + 3, "89abAB") ? 1 : is_one_of(i + 3, "cdefCDEF") ? 2 : 0;
}

// Half a pair of surrogates, such as of an emoji that was cut in JavaScript, becomes the character for what is damaged.
inline std::string without_halves(std::string text) {
    for (size_t i = text.find('\\'); i != std::string::npos; i = text.find('\\', i)) {
        const int kind = surrogate_at(text, i);
        if (kind == 1 && surrogate_at(text, i + 6) == 2) {
            i += 12;
        } else if (kind != 0) {
            text.replace(i, 6, "\\ufffd");
            i += 6;
        } else {
            i += 2;
        }
    }
    return text;
}

} // namespace eagle3::chat
