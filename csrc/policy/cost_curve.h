#pragma once

#include <array>
#include <cstdint>
#include <map>

namespace eagle3 {

// The microseconds that each 1,000 tokens before the rows add to a pass.
struct depth_growth {
    float per_pass = 0.0f, per_row = 0.0f;
};

// How many experts a model has and how many of them each row of a pass uses; 0: the model is dense.
struct expert_count {
    int32_t n = 0, n_used = 0;
};

// The microseconds of one pass over n rows, for n = 1, 2, ...: one value per n, as the times are a staircase that no
// smooth curve fits.
//
// Between two measured n the larger value of the two holds; above the last one that was seen, times grow in proportion
// to n. Both are upper estimates, so that nothing is chosen because of a guess. For a mixture of experts times follow
// the number of experts that are read: n rows that choose k of E each use E (1 - (1 - k/E)^n) of them. Attention adds a
// time for each token before the rows, one per pass (reading K and V) and one per row (computing).
//
// Real timings correct four things: a drift that all n share, since a busy machine slows everything down, the value of
// this n, and the two times of depth. Each is a scalar Kalman filter in the logarithm of a timing; a deviation is
// divided among them by how uncertain each is. A timing far below the estimate is believed at once: a busy machine
// makes passes slower, but nothing makes them faster. One row takes no longer than more do: while drafts are verified,
// no pass of one row corrects its time.
class cost_curve {
  public:
    static constexpr int32_t n_max = 128; // larger n are extrapolated, and their timings ignored

    // measured: n -> microseconds in an empty context. growth: what an earlier curve learned of depth. Throws
    // std::invalid_argument if measured is empty, has an n outside 1..n_max or a time that is not > 0.
    explicit cost_curve(const std::map<int32_t, double> & measured, depth_growth growth = {},
                        expert_count experts = {});

    // Sets how many tokens a sequence has before the rows, on average.
    void set_depth(float n_past) { depth_ = n_past / 1000.0f; }

    // The present estimate for any n >= 1; 0 for n <= 0.
    float at(int32_t n) const {
        return n <= 0 ? 0.0f : base(n) + depth_ * (growth_.per_pass + growth_.per_row * static_cast<float>(n));
    }

    // A real pass over n rows took t_us.
    void observe(int32_t n, double t_us);

    // The largest n that was measured or observed.
    int32_t n_last() const { return n_last_; }

    float drift() const { return drift_; }

    depth_growth growth() const { return growth_; }

    const std::map<int32_t, double> & measured() const { return measured_; }

    // measured(), lowered where passes were faster, and with the n above its last one that were observed.
    std::map<int32_t, double> corrected() const;

  private:
    float base(int32_t n) const {
        return drift_ * (n <= n_max ? now_[n] : now_[n_max] * static_cast<float>(n) / static_cast<float>(n_max));
    }

    void set_last(int32_t n);
    void observe_faster(int32_t n, float t_us);

    std::map<int32_t, double> measured_;
    bool                      has_experts_ = false;

    std::array<float, n_max + 1> work_{}; // [n]: times of n that were not seen are in proportion to this
    std::array<float, n_max + 1> now_{};  // [n]: microseconds without the drift
    std::array<float, n_max + 1> variance_{};
    int32_t                      n_last_         = 0;
    float                        drift_          = 1.0f;
    float                        drift_variance_ = 0.0f;
    float                        depth_          = 0.0f;
    depth_growth                 growth_, growth_variance_;
};

} // namespace eagle3
