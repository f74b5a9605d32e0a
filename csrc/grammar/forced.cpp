#include "grammar/forced.h"

#include "grammar/budget.h"
#include "grammar/sampler.h"
#include "llama-grammar.h"

#include <algorithm>
#include <optional>

namespace eagle3 {

namespace {

constexpr size_t   n_bytes_max = 96;
constexpr size_t   n_next_max  = 4;
constexpr uint64_t max_ticks   = 10000; // see grammar_lookahead

// The characters that may come next.
struct choice {
    uint32_t              one       = 0; // the first that was found
    uint32_t              other     = 0; // the first that is no white space
    size_t                n         = 0; // different ones; 2: or more
    size_t                n_others  = 0; // those that are no white space
    bool                  has_space = false;
    bool                  is_open   = false; // the text may end, or a rule names tokens or what may not come
    bool                  has_a     = false; // letters
    std::vector<uint32_t> some;

    void add(uint32_t low, uint32_t high) {
        has_a = has_a || (low <= 'a' && 'a' <= high && low != high);
        if (some.size() < n_next_max && std::find(some.begin(), some.end(), low) == some.end()) {
            some.push_back(low);
        }
        for (uint32_t c = low; c <= high && std::min(n, n_others) < 2; ++c) {
            n += n == 0 || c != one;
            one = n == 1 ? c : one;
            if (white_space::is_space(c)) {
                has_space = true;
            } else {
                n_others += n_others == 0 || c != other;
                other = n_others == 1 ? c : other;
            }
        }
    }

    void add(const llama_grammar_element * pos) {
        if (pos->type != LLAMA_GRETYPE_CHAR) {
            is_open = true;
            has_a   = has_a || pos->type == LLAMA_GRETYPE_CHAR_NOT || pos->type == LLAMA_GRETYPE_CHAR_ANY;
            return;
        }
        do {
            const bool is_range = pos[1].type == LLAMA_GRETYPE_CHAR_RNG_UPPER;
            add(pos->value, is_range ? pos[1].value : pos->value);
            pos += is_range ? 2 : 1;
        } while (pos->type == LLAMA_GRETYPE_CHAR_ALT);
    }

    bool is_one() const { return !is_open && n == 1; }
    bool may_be_guessed() const { return !is_open && !has_a && has_space; }
};

choice choice_of(const llama_grammar_stacks & stacks) {
    choice found;
    for (const llama_grammar_stack & stack : stacks) {
        if (stack.empty()) {
            found.is_open = true;
        } else {
            found.add(stack.back());
        }
    }
    return found;
}

std::string utf8(uint32_t c) {
    if (c < 0x80) {
        return { static_cast<char>(c) };
    }
    std::string bytes;
    const int   n_more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    bytes += static_cast<char>((0xFF00u >> (n_more + 1) & 0xFFu) | c >> 6 * n_more);
    for (int i = n_more - 1; i >= 0; --i) {
        bytes += static_cast<char>(0x80u | (c >> 6 * i & 0x3Fu));
    }
    return bytes;
}

// A text that grows along a grammar, which it moves.
class walk {
  public:
    walk(llama_grammar & grammar, const white_space & habit) : grammar_(grammar), habit_(habit) {}

    // Goes on by what is forced or guessed; false: neither.
    bool go_on() {
        const choice next = choice_of(grammar_.stacks);
        if (next.is_one()) {
            return append(next.one, 1.0f, false);
        }
        if (!next.may_be_guessed()) {
            return false;
        }
        const bool is_known = next.n_others == 1 && next.other < 0x80;
        const auto guess    = habit_.before(is_known ? static_cast<char>(next.other) : '\0');
        if (!guess) {
            return false;
        }
        float p = guess->p;
        for (const char c : guess->text) {
            if (!append(static_cast<unsigned char>(c), p, true)) {
                return false;
            }
            p = 1.0f;
        }
        return guess->text.empty() ? is_known && append(next.other, p, true) : true;
    }

    forced_text found;

  private:
    // false: it is a guess that the grammar does not allow
    bool append(uint32_t c, float p, bool is_guess) {
        llama_grammar_stacks before = is_guess ? grammar_.stacks : llama_grammar_stacks();
        llama_grammar_accept(&grammar_, c);
        if (grammar_.stacks.empty()) {
            grammar_.stacks = std::move(before);
            return false;
        }
        for (const char byte : utf8(c)) {
            habit_.read(byte);
            found.text += byte;
            found.p.push_back(p);
            p = 1.0f;
        }
        return true;
    }

    llama_grammar & grammar_;
    white_space     habit_;
};

} // namespace

forced_text find_forced(const llama_sampler * smpl, const white_space & habit) {
    forced_text found;
    with_grammar(smpl, [&](llama_grammar & grammar) {
        const choice first = choice_of(grammar.stacks);
        if (grammar.awaiting_trigger || grammar.partial_utf8.n_remain != 0 ||
            !(first.is_one() || first.may_be_guessed())) {
            return; // quickly, since this is so in most of a text
        }
        const grammar_budget::scope scope(max_ticks);
        walk                        w(grammar, habit);
        while (w.found.text.size() < n_bytes_max && w.go_on()) {
        }
        const choice next = choice_of(grammar.stacks);
        for (const uint32_t c : next.has_a ? std::vector<uint32_t>{ 'a' } : next.some) {
            w.found.next.push_back(utf8(c));
        }
        found = std::move(w.found);
    });
    return found;
}

} // namespace eagle3
