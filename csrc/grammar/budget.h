#pragma once

#include "system.h"

#include <cstdint>
#include <stdexcept>

namespace eagle3 {

// Some grammars are small but so ambiguous that one token takes forever: work on a grammar ends with an exception when
// it has taken too much CPU time, for one token or for its text. CPU time, so that a busy machine does not change what
// is refused.
class grammar_budget {
  public:
    static constexpr double   MAX_SECONDS = 0.5;
    static constexpr uint64_t N_SKIPPED   = 64; // ticks between two looks at the clock

    // What the tokens of one text have taken.
    struct account {
        static constexpr double FIRST_SECONDS = 3.0;
        static constexpr double TOKEN_SECONDS = 0.02; // more for each token

        double   seconds  = 0.0;
        uint64_t n_tokens = 0;
    };

    // Must live around each call of llama.cpp's grammar code. In a nested scope the outer one's limits hold, and its
    // account is charged.
    class scope {
      public:
        // max_ticks: a limit of steps, which is the same on every machine.
        explicit scope(uint64_t max_ticks = UINT64_MAX) : scope(nullptr, 0, max_ticks) {}

        // n_tokens: is added to those of the text.
        scope(account & text, uint64_t n_tokens) : scope(&text, n_tokens, UINT64_MAX) {}

        scope(const scope &)             = delete;
        scope & operator=(const scope &) = delete;

        ~scope() {
            if (text_) {
                text_->seconds += thread_cpu_seconds() - start_;
            }
            if (is_outer_) {
                current().is_limited = false;
            }
        }

      private:
        scope(account * text, uint64_t n_tokens, uint64_t max_ticks) : is_outer_(!current().is_limited) {
            if (!is_outer_) {
                return;
            }
            start_ = thread_cpu_seconds();
            if (text) {
                text->n_tokens += n_tokens;
                if (text->seconds >
                    account::FIRST_SECONDS + account::TOKEN_SECONDS * static_cast<double>(text->n_tokens)) {
                    throw std::invalid_argument("the grammar is too ambiguous: the text takes longer than 3 seconds of "
                                                "CPU time and 0.02 for each token");
                }
            }
            text_     = text;
            current() = { start_ + MAX_SECONDS, max_ticks, 0, true };
        }

        bool      is_outer_;
        account * text_  = nullptr;
        double    start_ = 0.0;
    };

    static void tick() {
        limits & s = current();
        ++s.n_ticks;
        if (s.n_ticks > s.max_ticks || (s.n_ticks % N_SKIPPED == 0 && thread_cpu_seconds() > s.deadline)) {
            throw std::invalid_argument(
                "the grammar is too ambiguous: one token takes longer than half a second of CPU time");
        }
    }

  private:
    struct limits {
        double   deadline   = 0.0;
        uint64_t max_ticks  = 0;
        uint64_t n_ticks    = 0;
        bool     is_limited = false;
    };

    static limits & current() {
        static thread_local limits s;
        return s;
    }
};

} // namespace eagle3
