#pragma once

#include "error.h"

#include <set>
#include <string>

namespace eagle3 {

// An assertion of llama.cpp or ggml failed while a guard lived.
struct assertion_error : error {
    using error::error;
};

// While one lives, an assertion of llama.cpp that fails on this thread throws assertion_error instead of ending the
// process. llama.cpp catches exceptions while it loads a model or makes a context, so these calls fail as for other
// reasons. Calls that compute need `outside_kernels`, with which assertions in ggml's kernels still end the process,
// since other threads would wait for this one for ever.
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

// An abort_guard that also collects what llama.cpp logs on this thread, so that an error can name its reason.
class load_guard {
  public:
    explicit load_guard(abort_guard::scope scope = abort_guard::everywhere);
    ~load_guard();
    load_guard(const load_guard &)             = delete;
    load_guard & operator=(const load_guard &) = delete;

    // Why something failed, in llama.cpp's words; empty if it gave no reason.
    const std::string & reason() const { return reason_; }

    // The tensors that llama.cpp has asked the file for: those of its graph.
    const std::set<std::string> & tensors() const { return tensors_; }

    // The keys whose overrides have another type than the file, so that llama.cpp ignores them, and both types.
    const std::set<std::string> & ignored() const { return ignored_; }

    // Was the reason an assertion?
    bool asserted() const { return asserted_; }

  private:
    friend struct guard_state;

    abort_guard  guard_;
    load_guard * outer_;
    std::string  reason_;

    std::set<std::string> tensors_, ignored_;

    bool is_cause_ = false; // the reason is what ended the load, not just the first warning
    bool asserted_ = false;
};

} // namespace eagle3
