#pragma once

#include "llama-grammar.h"

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

namespace eagle3 {

struct free_grammar {
    void operator()(llama_grammar * grammar) const { llama_grammar_free_impl(grammar); }
};

using grammar_ptr = std::unique_ptr<llama_grammar, free_grammar>;

// The states of a grammar: what may follow its texts. llama.cpp is asked once for each state and character which state
// comes next, so most of a text moves along known ones. They are forgotten when they take too much memory. For one
// thread.
class grammar_automaton {
  public:
    class state : public std::enable_shared_from_this<state> {
      public:
        explicit state(llama_grammar_stacks stacks);

        const llama_grammar_stacks & stacks() const { return stacks_; }
        bool                         may_end() const { return may_end_; }

        // May this part of a character follow?
        bool allows(const llama_partial_utf8 & part) const;

      private:
        friend class grammar_automaton;

        using table = std::array<state *, 128>;

        llama_grammar_stacks stacks_;
        bool                 may_end_;

        // what follows, of this generation of states
        uint64_t                                  generation_ = 0;
        std::unique_ptr<table>                    ascii_;    // by character
        std::vector<std::pair<uint64_t, state *>> by_match_; // by the stacks that take the character, as bits
        std::optional<bool>                       loops_;
    };

    // Takes a grammar.
    explicit grammar_automaton(grammar_ptr grammar);

    grammar_automaton(const grammar_automaton &)             = delete;
    grammar_automaton & operator=(const grammar_automaton &) = delete;

    // Its stacks may be anything.
    llama_grammar & grammar() { return *grammar_; }

    // Does a rule name tokens? Then a token is more than its characters.
    bool names_tokens() const { return names_tokens_; }

    std::shared_ptr<state> find(llama_grammar_stacks stacks);

    // The state after a character, which stays until forget_some(); null: the character may not come. Must be called
    // within a grammar_budget::scope.
    state * after(state & s, uint32_t c);

    // Does each plain character (token_tree::is_plain) lead from the state to itself, as in a string?
    bool loops(state & s);

    // If the states take too much memory, forgets those that nobody holds.
    void forget_some();

    // Do they take far too much?
    bool is_overfull() const { return n_bytes_ > 8 * n_bytes_max; }

  private:
    static constexpr size_t n_bytes_max = 4 << 20;

    void    refresh(state & s) const;
    state * look_up(state & s, uint32_t c);
    state * compute(const state & s, uint32_t c);

    grammar_ptr grammar_;
    bool        names_tokens_;
    size_t      n_bytes_    = 0; // of the states, about
    uint64_t    generation_ = 1;

    std::unordered_multimap<size_t, std::shared_ptr<state>> states_; // by a hash of their stacks
};

// Where a text is in its grammar.
struct grammar_place {
    grammar_automaton &        automaton;
    grammar_automaton::state & state;
    bool                       is_whole; // the text ends with a whole character
};

} // namespace eagle3
