#pragma once

#include <cstdint>

namespace eagle3 {

// Is a drafter worth asking in each step?
//
// Steps with its drafts add what they gain, in standard deviations, to the credit, or take what they lose. Without
// credit the gate closes: it lets a probe through after 8 steps, then 16, up to 256. So a useless drafter costs its
// credit once, and then next to nothing. Beside another drafter a step gains what it gives beyond that one's.
class gate {
  public:
    bool open() const { return open_; }

    // what its steps give beyond plain ones, in tokens, as long as it is asked
    float worth() const { return open_ ? worth_ : 0.0f; }

    // a step begins: ask the drafter?
    bool ask();

    // The step has really given `value`, in tokens, while `expected` was expected of it, and another drafter would have
    // given `rival`, 0 without one. Expectations of the best choice are too high: they only say whether to go on
    // probing, as does a surprise, something unlikely that the text agreed with. verified: something of what was
    // drafted was verified.
    void update(float value, float expected, float rival, bool verified, bool surprise);

    // a new text begins: no long waiting for it
    void new_text();

  private:
    void close(int32_t n_wait); // until the next probe

    bool    open_     = true;
    float   credit_   = 6.0f;
    float   variance_ = 1.0f; // of a step's gain
    float   worth_    = 0.0f;
    float   n_asked_  = 0.0f; // steps that worth_ is the mean of
    int32_t wait_     = 0;    // steps until the next probe
    int32_t n_wait_   = 0;    // 0: it was never closed
};

// When are drafts tried although the costs say that none can pay? The costs may have been measured on a busy machine.
// After 128 steps, then 256, up to 1024: three rows more in 1,024 passes cost 0.3 %.
class trials {
  public:
    bool due();

  private:
    int32_t wait_   = 128;
    int32_t n_wait_ = 128;
};

} // namespace eagle3
