#include "grammar/forced.h"

#include "grammar/automaton.h"
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
constexpr float    p_end       = 0.8f;  // where the text may end, that it does

// The characters that may come next.
struct choice {
    uint32_t              one       = 0; // the first that was found
    uint32_t              other     = 0; // the first that is neither white space nor a comma
    size_t                n         = 0; // different ones; 2: or more
    size_t                n_others  = 0; // of those like `other`
    bool                  has_comma = false;
    bool                  has_space = false;
    bool                  may_end   = false;
    bool                  is_open   = false; // a rule names tokens or what may not come
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
            } else if (c == ',') {
                has_comma = true;
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

    bool is_one() const { return !is_open && !may_end && n == 1; }
    bool may_be_guessed() const { return !is_open && !may_end && !has_a && has_space; }

    // The one besides white space; 0: there are several. Outside of all brackets a comma is not likely.
    char besides_space(bool is_outside) const {
        const size_t   n_all = n_others + (has_comma && !(is_outside && n_others > 0));
        const uint32_t found = n_others > 0 ? other : static_cast<uint32_t>(',');
        return n_all == 1 && found < 0x80 ? static_cast<char>(found) : '\0';
    }
};

choice choice_of(const llama_grammar_stacks & stacks) {
    choice found;
    for (const llama_grammar_stack & stack : stacks) {
        if (stack.empty()) {
            found.may_end = true;
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

// A text that grows along a grammar.
class walk {
  public:
    walk(const grammar_place & place, const white_space & habit) :
        automaton_(place.automaton), state_(&place.state), habit_(habit) {}

    choice next() const { return choice_of(state_->stacks()); }

    // Goes on by what is forced or guessed; false: neither.
    bool go_on() {
        const choice found = next();
        if (found.is_one()) {
            return append(found.one, 1.0f);
        }
        if (!found.may_be_guessed()) {
            return false;
        }
        const char known = found.besides_space(habit_.is_outside());
        const auto guess = habit_.before(known);
        if (!guess) {
            return false;
        }
        float p = guess->p;
        for (const char c : guess->text) {
            if (!append(static_cast<unsigned char>(c), p)) {
                return false;
            }
            p = 1.0f;
        }
        return guess->text.empty() ? known != 0 && append(static_cast<unsigned char>(known), p) : true;
    }

    forced_text text;

  private:
    // false: it is a guess that the grammar does not allow
    bool append(uint32_t c, float p) {
        grammar_automaton::state * after = automaton_.after(*state_, c);
        if (after == nullptr) {
            return false;
        }
        state_ = after;
        for (const char byte : utf8(c)) {
            habit_.read(byte);
            text.text += byte;
            text.p.push_back(p);
            p = 1.0f;
        }
        return true;
    }

    grammar_automaton &        automaton_;
    grammar_automaton::state * state_;
    white_space                habit_;
};

} // namespace

forced_text find_forced(const llama_sampler * smpl, const white_space & habit) {
    const grammar_place place = grammar_place_of(smpl);
    const choice        first = choice_of(place.state.stacks());
    if (grammar_is_waiting(smpl) || !place.is_whole || !(first.is_one() || first.may_be_guessed())) {
        return {}; // quickly, since this is so in most of a text
    }
    const grammar_budget::scope scope(max_ticks);
    walk                        w(place, habit);
    while (w.text.text.size() < n_bytes_max && w.go_on()) {
    }
    const choice next = w.next();
    if (next.may_end && !next.is_open) { // what else may come is white space, or another call
        w.text.p_end = next.n == 0 ? 1.0f : p_end;
    }
    for (const uint32_t c : next.has_a ? std::vector<uint32_t>{ 'a' } : next.some) {
        w.text.next.push_back(utf8(c));
    }
    return std::move(w.text);
}

} // namespace eagle3
