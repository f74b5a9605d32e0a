#include "drafters/grammar/drafter.h"

#include "target/tokenizer.h"

#include <algorithm>
#include <exception>

namespace eagle3 {

namespace {

constexpr size_t n_last = 3;    // tokens with which forced text may make one token
constexpr float  p_last = 0.9f; // of the last token: more characters may come than are asked about

std::vector<llama_token> spell(const llama_vocab * vocab, const std::string & text) {
    return tokenize(vocab, text, /*add_special =*/false, /*parse_special =*/true);
}

// A text from a place on, as the tokenizer spells all of it.
struct spelling {
    std::vector<llama_token> tokens;     // of all
    std::vector<size_t>      ends  = {}; // of each token, from the place on; negative ones are cut to 0
    size_t                   first = 0;  // the token that begins at the place; tokens.size(): none does
};

spelling spell_after(const llama_vocab * vocab, const std::string & before, const std::string & text) {
    spelling    found = { spell(vocab, before + text) };
    std::string all;
    for (const llama_token token : found.tokens) {
        all += token_to_piece(vocab, token, /*special =*/true);
        found.ends.push_back(all.size());
    }
    const size_t n_more = all.size() - std::min(all.size(), before.size() + text.size());
    found.first         = found.tokens.size();
    if (n_more > 1 || all.compare(n_more, std::string::npos, before + text) != 0) {
        return found; // the tokenizer has changed the text by more than the space that SentencePiece puts before it
    }
    for (size_t i = found.tokens.size(); i-- > 0;) {
        const size_t begin = i == 0 ? 0 : found.ends[i - 1];
        found.first        = begin == before.size() + n_more ? i : found.first;
    }
    for (size_t & end : found.ends) {
        end -= std::min(end, before.size() + n_more);
    }
    return found;
}

// How many tokens two texts have in common at their beginning.
size_t n_common(const std::vector<llama_token> & a, const std::vector<llama_token> & b) {
    const auto n = static_cast<std::ptrdiff_t>(std::min(a.size(), b.size()));
    return static_cast<size_t>(std::mismatch(a.begin(), a.begin() + n, b.begin()).first - a.begin());
}

} // namespace

void grammar_drafter::read(const std::vector<llama_token> & tokens) {
    for (const llama_token token : tokens) {
        std::string piece = token < 0 ? "" : token_to_piece(vocab_, token, /*special =*/false);
        if (piece.empty()) { // a special token: the tokenizer splits the text there
            last_.clear();
            continue;
        }
        for (const char c : piece) {
            habit_.read(c);
        }
        last_.erase(last_.begin(), last_.begin() + (last_.size() < n_last ? 0 : 1));
        last_.push_back(std::move(piece));
    }
}

void grammar_drafter::reset() {
    habit_ = {};
    last_.clear();
}

std::vector<draft_candidate> grammar_drafter::propose(size_t n_max) {
    if (has_failed_) {
        return {};
    }
    try {
        std::vector<draft_candidate> found = spell(forced());
        found.resize(std::min(found.size(), n_max));
        return found;
    } catch (const std::exception &) { // text that the grammar or the vocabulary cannot take: its sampler will say so
        has_failed_ = true;
        return {};
    }
}

std::vector<draft_candidate> grammar_drafter::spell(const forced_text & found) const {
    std::vector<draft_candidate> drafted;
    if (found.text.empty()) {
        return drafted;
    }
    std::string before;
    for (const std::string & piece : last_) {
        before += piece;
    }
    spelling spelt = spell_after(vocab_, before, found.text);
    if (spelt.first == spelt.tokens.size() && !before.empty()) { // the tokenizer would not have ended a token here
        before.clear();
        spelt = spell_after(vocab_, before, found.text);
    }
    std::vector<size_t> n_same; // tokens that stay, for each character that may come next
    for (const std::string & c : found.next) {
        n_same.push_back(n_common(spelt.tokens, eagle3::spell(vocab_, before + found.text + c)));
    }
    const float p_more = n_same.empty() ? 0.0f : (1.0f - found.p_end) / static_cast<float>(n_same.size()); // of each
    size_t      from   = 0;
    for (size_t i = spelt.first; i < spelt.tokens.size(); ++i) {
        const auto  n_kept  = std::count_if(n_same.begin(), n_same.end(), [i](size_t n) { return n > i; });
        const bool  is_last = spelt.ends[i] == found.text.size();
        const float share   = n_same.empty() ? 1.0f : found.p_end + static_cast<float>(n_kept) * p_more;
        if (share < 0.5f) {
            return drafted;
        }
        float p = share * (is_last && found.p_end < 1.0f ? p_last : 1.0f);
        for (; from < spelt.ends[i]; ++from) {
            p *= found.p[from];
        }
        drafted.push_back({ spelt.tokens[i], p });
    }
    const llama_token eot = llama_vocab_eot(vocab_);
    const llama_token end = eot != LLAMA_TOKEN_NULL ? eot : llama_vocab_eos(vocab_);
    if (found.p_end > 0.0f && end != LLAMA_TOKEN_NULL && !drafted.empty()) {
        drafted.push_back({ end, found.p_end });
    }
    return drafted;
}

} // namespace eagle3
