#pragma once

#include "system.h"

#include <cstdint>
#include <stdexcept>

namespace eagle3 {

// Some grammars are small but so ambiguous that one token takes forever: work on a grammar ends with an exception when
// it has taken too much CPU time. CPU time, so that a busy machine does not change what is refused.
class grammar_budget {
  public:
    static constexpr double   MAX_SECONDS = 0.5;
    static constexpr uint64_t N_SKIPPED   = 64; // ticks between two looks at the clock

    // Must live around each call of llama.cpp's grammar code. In a nested scope the outer one's limits hold.
    class scope {
      public:
        // max_ticks: a limit of steps, which is the same on every machine.
        explicit scope(uint64_t max_ticks = UINT64_MAX) : is_outer_(!current().is_limited) {
            if (is_outer_) {
                current() = { thread_cpu_seconds() + MAX_SECONDS, max_ticks, 0, true };
            }
        }

        scope(const scope &)             = delete;
        scope & operator=(const scope &) = delete;

        ~scope() {
            if (is_outer_) {
                current().is_limited = false;
            }
        }

      private:
        bool is_outer_;
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
