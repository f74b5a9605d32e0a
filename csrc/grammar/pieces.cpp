#include "grammar/pieces.h"

#include "grammar/llama_grammar.h"
#include "llama-vocab.h"

#include <algorithm>

namespace eagle3 {

namespace {

// A token's characters, of which a 0 is the end.
struct spelling {
    llama_token    token;
    size_t         offset;
    character_part end;
};

size_t n_common(const uint32_t * a, const uint32_t * b) {
    size_t n = 0;
    while (a[n] != 0 && a[n] == b[n]) {
        ++n;
    }
    return n;
}

} // namespace

token_tree::token_tree(const llama_vocab & vocab) : vocab_(vocab) {
    std::vector<uint32_t> characters = { 0 };
    std::vector<spelling> spelt;
    for (llama_token token = 0; token < static_cast<llama_token>(vocab.n_tokens()); ++token) {
        const std::string & text = vocab.token_to_piece(token);
        if (vocab.is_eog(token)) {
            ends_texts_.push_back(token);
        } else if (!text.empty() && text[0] != 0) {
            const auto [own, end] = decode_piece(text, {});
            spelt.push_back({ token, characters.size(), { end.value, end.n_remain } });
            characters.insert(characters.end(), own.begin(), own.end());
        }
    }
    const uint32_t * all = characters.data();
    std::sort(spelt.begin(), spelt.end(), [all](const spelling & a, const spelling & b) {
        const uint32_t *x = all + a.offset, *y = all + b.offset;
        const size_t    n = n_common(x, y);
        return x[n] != y[n] ? x[n] < y[n] : a.token < b.token;
    });
    const uint32_t *      before = all;
    std::vector<uint32_t> path   = { 0 };
    nodes_.push_back({ 0, 1, 0, 0 });
    for (const spelling & s : spelt) {
        const uint32_t * own = all + s.offset;
        const size_t     n   = n_common(before, own);
        close(path, n + 1);
        for (size_t i = n; own[i] != 0; ++i) {
            path.push_back(static_cast<uint32_t>(nodes_.size()));
            nodes_.push_back({ own[i] & 0x7fffffffu, 1, 0, static_cast<uint32_t>(tokens_.size()) });
        }
        if (s.end.n_remain != 0) {
            nodes_[path.back()].is_plain = 0;
        }
        tokens_.push_back(s.token);
        ends_.push_back(s.end);
        before = own;
    }
    close(path, 0);
    nodes_.push_back({ 0, 0, static_cast<uint32_t>(nodes_.size()), static_cast<uint32_t>(tokens_.size()) });
    nodes_.shrink_to_fit();
    tokens_.shrink_to_fit();
    ends_.shrink_to_fit();
}

// Ends the last nodes of a path, so that n_left stay.
void token_tree::close(std::vector<uint32_t> & path, size_t n_left) {
    while (path.size() > n_left) {
        node & n = nodes_[path.back()];
        n.end    = static_cast<uint32_t>(nodes_.size());
        path.pop_back();
        if (!path.empty() && !(n.is_plain && is_plain(n.c))) {
            nodes_[path.back()].is_plain = 0;
        }
    }
}

} // namespace eagle3
