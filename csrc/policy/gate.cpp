#include "policy/gate.h"

#include <algorithm>
#include <cmath>

namespace eagle3 {

namespace {

constexpr float   credit_max   = 24.0f; // what a drafter that turns bad can waste
constexpr float   credit_probe = 1.0f;  // gained or lost: enough to decide about a closed gate
constexpr float   variance_min = 0.25f;
constexpr float   hopeless     = 14.0f; // at first a step counts so much if nothing was worth verifying, and rightly so
constexpr float   rate_variance    = 1.0f / 32.0f;
constexpr float   rate_worth       = 1.0f / 32.0f;
constexpr int32_t n_wait_first     = 8;
constexpr int32_t n_wait_max       = 256;
constexpr int32_t n_wait_text      = 32; // at most, when a new text begins
constexpr int32_t n_trial_wait_max = 1024;

} // namespace

bool gate::ask() {
    return open_ || wait_-- <= 0;
}

void gate::update(float value, float expected, float rival, bool verified, bool surprise) {
    n_asked_ += 1.0f;
    worth_ += std::max(1.0f / n_asked_, rate_worth) * (value - worth_);
    const float more = value - rival;
    variance_ += rate_variance * (more * more - variance_);
    const float gain = more / std::sqrt(std::max(variance_, variance_min));
    if (open_) {
        credit_ = std::min(credit_ + (verified || surprise || n_wait_ > 0 ? gain : hopeless * gain), credit_max);
        if (credit_ < 0.0f) {
            close(n_wait_first);
        }
        return;
    }
    // of a probe that was not verified, all that matters is whether the text agreed with it
    credit_ += verified ? gain : 0.0f;
    if (credit_ > credit_probe) {
        open_ = true;
    } else if (credit_ < -credit_probe || (expected <= rival && !surprise)) {
        close(std::min(2 * n_wait_, n_wait_max));
    } else {
        wait_ = 0; // not decided yet: probe again at once
    }
}

void gate::close(int32_t n_wait) {
    open_   = false;
    n_wait_ = wait_ = n_wait;
    credit_         = 0.0f;
}

void gate::new_text() {
    wait_ = std::min(wait_, n_wait_text);
}

bool trials::due() {
    if (--wait_ > 0) {
        return false;
    }
    wait_ = n_wait_ = std::min(2 * n_wait_, n_trial_wait_max);
    return true;
}

} // namespace eagle3
