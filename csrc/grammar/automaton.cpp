#include "grammar/automaton.h"

#include "grammar/budget.h"
#include "grammar/llama_grammar.h"
#include "grammar/pieces.h"

#include <algorithm>
#include <iterator>

namespace eagle3 {

namespace {

using element = llama_grammar_element;

constexpr size_t n_bits = 64;

size_t hash_of(const llama_grammar_stacks & stacks) {
    uint64_t   h   = 0;
    const auto add = [&h](uint64_t x) {
        h = (h ^ x) * 0x9E3779B97F4A7C15u;
        h ^= h >> 32;
    };
    for (const llama_grammar_stack & stack : stacks) {
        add(stack.size());
        for (const element * pos : stack) {
            add(reinterpret_cast<uintptr_t>(pos));
        }
    }
    return static_cast<size_t>(h);
}

size_t n_bytes_of(const llama_grammar_stacks & stacks) {
    size_t n = 256;
    for (const llama_grammar_stack & stack : stacks) {
        n += sizeof(stack) + stack.size() * sizeof(stack[0]);
    }
    return n;
}

bool is_token(const element & e) {
    return e.type == LLAMA_GRETYPE_TOKEN || e.type == LLAMA_GRETYPE_TOKEN_NOT;
}

bool takes_characters(const llama_grammar_stack & stack) {
    return !stack.empty() && !is_token(*stack.back());
}

bool takes(const llama_grammar_stack & stack, uint32_t c) {
    return takes_characters(stack) && matches(stack.back(), c);
}

// What is looked up but not known yet.
grammar_automaton::state unknown{ llama_grammar_stacks() };

} // namespace

grammar_automaton::state::state(llama_grammar_stacks stacks) :
    stacks_(std::move(stacks)), may_end_(std::any_of(stacks_.begin(), stacks_.end(),
                                                     [](const llama_grammar_stack & stack) { return stack.empty(); })) {
}

bool grammar_automaton::state::allows(const llama_partial_utf8 & part) const {
    return std::any_of(stacks_.begin(), stacks_.end(), [&part](const llama_grammar_stack & stack) {
        return takes_characters(stack) && may_match(stack.back(), part);
    });
}

grammar_automaton::grammar_automaton(grammar_ptr grammar) :
    grammar_(std::move(grammar)),
    names_tokens_(std::any_of(grammar_->rules.begin(), grammar_->rules.end(), [](const llama_grammar_rule & rule) {
        return std::any_of(rule.begin(), rule.end(), is_token);
    })) {}

std::shared_ptr<grammar_automaton::state> grammar_automaton::find(llama_grammar_stacks stacks) {
    const size_t hash       = hash_of(stacks);
    const auto [begin, end] = states_.equal_range(hash);
    const auto found        = std::find_if(begin, end, [&](const auto & s) { return s.second->stacks_ == stacks; });
    if (found != end) {
        return found->second;
    }
    n_bytes_ += n_bytes_of(stacks);
    auto made         = std::make_shared<state>(std::move(stacks));
    made->generation_ = generation_;
    states_.emplace(hash, made);
    return made;
}

// Forgets what follows a state that was held while others were forgotten.
void grammar_automaton::refresh(state & s) const {
    if (s.generation_ != generation_) {
        s.generation_ = generation_;
        s.ascii_.reset();
        s.by_match_.clear();
        s.loops_.reset();
    }
}

grammar_automaton::state * grammar_automaton::after(state & s, uint32_t c) {
    refresh(s);
    if (c >= std::tuple_size_v<state::table>) {
        return look_up(s, c);
    }
    if (!s.ascii_) {
        s.ascii_ = std::make_unique<state::table>();
        s.ascii_->fill(&unknown);
        n_bytes_ += sizeof(state::table);
    }
    state *& next = (*s.ascii_)[c];
    if (next == &unknown) {
        next = look_up(s, c);
    }
    return next;
}

// What follows depends only on which of the stacks take the character.
grammar_automaton::state * grammar_automaton::look_up(state & s, uint32_t c) {
    if (s.stacks_.size() > n_bits) {
        return compute(s, c);
    }
    uint64_t bits = 0;
    for (size_t i = 0; i < s.stacks_.size(); ++i) {
        bits |= static_cast<uint64_t>(takes(s.stacks_[i], c)) << i;
    }
    if (bits == 0) {
        return nullptr;
    }
    for (const auto & [known, next] : s.by_match_) {
        if (known == bits) {
            return next;
        }
    }
    state * next = compute(s, c);
    s.by_match_.emplace_back(bits, next);
    return next;
}

grammar_automaton::state * grammar_automaton::compute(const state & s, uint32_t c) {
    llama_grammar_stacks & stacks = grammar_->stacks;
    stacks.clear();
    std::copy_if(s.stacks_.begin(), s.stacks_.end(), std::back_inserter(stacks),
                 [c](const llama_grammar_stack & stack) { return takes(stack, c); });
    for (size_t i = 0; i < stacks.size() * stacks.size() / 64; ++i) {
        grammar_budget::tick(); // llama.cpp compares each new stack with the others
    }
    llama_grammar_accept(grammar_.get(), c);
    return stacks.empty() ? nullptr : find(std::move(stacks)).get();
}

bool grammar_automaton::loops(state & s) {
    refresh(s);
    if (!s.loops_) {
        // all characters from one of these to the next are taken by the same stacks
        std::vector<uint32_t> firsts = { 0x20, '"' + 1, '\\' + 1, 0x80 };
        for (const llama_grammar_stack & stack : s.stacks_) {
            if (takes_characters(stack)) {
                const element * pos = stack.back();
                do {
                    const bool is_range = pos[1].type == LLAMA_GRETYPE_CHAR_RNG_UPPER;
                    firsts.insert(firsts.end(), { pos->value, (is_range ? pos[1].value : pos->value) + 1 });
                    pos += is_range ? 2 : 1;
                } while (pos->type == LLAMA_GRETYPE_CHAR_ALT);
            }
        }
        s.loops_ = std::all_of(firsts.begin(), firsts.end(),
                               [&](uint32_t c) { return !token_tree::is_plain(c) || after(s, c) == &s; });
    }
    return *s.loops_;
}

void grammar_automaton::forget_some() {
    if (n_bytes_ > n_bytes_max) {
        states_.clear();
        n_bytes_ = 0;
        ++generation_;
    }
}

} // namespace eagle3
