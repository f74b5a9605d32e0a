#pragma once

#include <cstdint>

namespace eagle3 {

// Is the head worth asking in each step?
//
// What steps with a draft gain, in standard deviations, goes into its credit, what they cost is taken from it, and
// when nothing is left the gate is closed. A closed gate lets a probe through after 8 steps, then 16, up to 256. So a
// useless head costs its credit once, and then next to nothing.
class gate {
  public:
    bool open() const { return open_; }

    // a step begins: ask the head?
    bool ask();

    // The step has really given `value`, in tokens, while `expected` was expected of it. Expectations of the best
    // choice are too high: they only say whether to go on probing, as does a surprise, something unlikely that the text
    // agreed with. verified: something of what was drafted was verified.
    void update(float value, float expected, bool verified, bool surprise);

    // a new text begins: no long waiting for it
    void new_text();

  private:
    void close(int32_t n_wait); // until the next probe

    bool    open_     = true;
    float   credit_   = 6.0f;
    float   variance_ = 1.0f; // of a step's value
    int32_t n_open_   = 0;    // drafted steps since it was opened
    int32_t wait_     = 0;    // steps until the next probe
    int32_t n_wait_   = 0;
};

} // namespace eagle3
