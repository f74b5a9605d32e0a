#pragma once

#include "error.h"

#include <string>

namespace eagle3 {

// an assertion of llama.cpp or ggml that failed where a guard was
struct assertion_error : error {
    using error::error;
};

// While one lives, an assertion of llama.cpp that fails on this thread is an assertion_error instead of the end of the
// process. Calls that load a model or make a context then fail as they do for other reasons, because llama.cpp catches
// exceptions there. Calls that compute need `outside_kernels`: what ggml's kernels assert still ends the process then,
// because other threads would wait for this one for ever.
class abort_guard {
  public:
    enum scope { everywhere, outside_kernels };

    explicit abort_guard(scope scope = everywhere);
    ~abort_guard();
    abort_guard(const abort_guard &)             = delete;
    abort_guard & operator=(const abort_guard &) = delete;

  private:
    const abort_guard * outer_;
    scope               scope_;

    friend struct guard_state;
};

// The same, and it collects what llama.cpp logs on this thread, so that an error can name its reason
class load_guard {
  public:
    load_guard();
    ~load_guard();
    load_guard(const load_guard &)             = delete;
    load_guard & operator=(const load_guard &) = delete;

    // why something failed, as llama.cpp put it; empty if it gave no reason
    const std::string & reason() const { return reason_; }

    // whether that was an assertion
    bool asserted() const { return asserted_; }

  private:
    friend struct guard_state;

    abort_guard  guard_;
    load_guard * outer_;
    std::string  reason_;
    bool         is_cause_ = false; // the reason is what ended a load, and not just the first complaint
    bool         asserted_ = false;
};

} // namespace eagle3
