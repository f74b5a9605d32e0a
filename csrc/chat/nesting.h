#pragma once

#include <algorithm>
#include <string>

namespace eagle3::chat {

// How deep the brackets and tags of a text are nested at most, whatever language it is in: no parser recurses deeper.
inline size_t text_nesting(const std::string & text) {
    size_t depth = 0;
    size_t max   = 0;
    for (size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        const bool is_close =
            c == ']' || c == '}' || c == ')' || (c == '<' && i + 1 < text.size() && text[i + 1] == '/');
        if (is_close) {
            depth -= depth > 0;
        } else if (c == '[' || c == '{' || c == '(' || c == '<') {
            max = std::max(max, ++depth);
        }
    }
    return max;
}

} // namespace eagle3::chat
