#pragma once

#include "error.h"

#include <atomic>

namespace eagle3 {

// Set while a thread uses an object that only one may use: a second thread gets an exception instead of a race.
class busy_flag {
  public:
    // False if another thread has set it.
    bool try_set() { return !is_set_.exchange(true, std::memory_order_acquire); }

    void clear() { is_set_.store(false, std::memory_order_release); }

    class scope {
      public:
        explicit scope(busy_flag & flag) : flag(flag) {
            if (!flag.try_set()) {
                throw busy_error(
                    "this object is in use by another thread: give every thread its own, or take turns with a lock");
            }
        }
        ~scope() { flag.clear(); }

        scope(const scope &)             = delete;
        scope & operator=(const scope &) = delete;

      private:
        busy_flag & flag;
    };

  private:
    std::atomic<bool> is_set_{ false };
};

} // namespace eagle3
