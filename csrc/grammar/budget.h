#pragma once

#include <ctime>
#include <stdexcept>

namespace eagle3 {

// Some grammars are small and ambiguous, so that one token can take forever: work on one ends with an exception when it
// has taken too long. In CPU time, so that a busy machine does not change what is refused.
class grammar_budget {
  public:
    static constexpr double   MAX_SECONDS = 0.5;
    static constexpr unsigned N_SKIPPED   = 64; // ticks between two looks at the clock

    // around each call into llama.cpp's grammar code
    class scope {
      public:
        scope() {
            deadline() = now() + MAX_SECONDS;
            n_ticks()  = 0;
        }
    };

    static void tick() {
        if (++n_ticks() % N_SKIPPED == 0 && now() > deadline()) {
            throw std::invalid_argument(
                "the grammar is too ambiguous: one token takes longer than half a second of CPU time");
        }
    }

  private:
    static double now() {
        timespec t;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
        return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
    }

    static double & deadline() {
        static thread_local double t = 0.0;
        return t;
    }

    static unsigned & n_ticks() {
        static thread_local unsigned n = 0;
        return n;
    }
};

} // namespace eagle3
