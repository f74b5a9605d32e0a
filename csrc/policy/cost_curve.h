#pragma once

#include <array>
#include <cstdint>
#include <map>

namespace eagle3 {

// microseconds that 1,000 tokens before it add to a pass
struct depth_growth {
    float per_pass = 0.0f, per_row = 0.0f;
};

// The experts that a model has, and that each row of a pass uses; 0: it is dense.
struct expert_count {
    int32_t n = 0, n_used = 0;
};

// Microseconds of one pass over n rows, for n = 1, 2, ...: a staircase, one value per n and no fit through them.
//
// Between two measured n the larger of both values is taken, above the last one that was seen it grows in proportion:
// upper estimates, so that nothing is chosen because of a guess. A mixture of experts takes the time to read those that
// its rows use: n rows that choose k of E each use E (1 - (1 - k/E)^n) of them. Attention adds a time for each token
// before the rows: one per pass (reading K and V) and one per row (computing).
//
// Real timings refine all of it: a drift that all n share, since a busy machine slows everything down, a correction per
// n, and both times of depth. They are scalar Kalman filters in the logarithm of a timing, which split what it says by
// how uncertain each of them is. A timing far below what was measured stands at once: a busy machine makes passes
// slower, nothing makes them faster.
class cost_curve {
  public:
    static constexpr int32_t n_max = 128; // larger n are extrapolated, and not observed

    // n -> microseconds, at the beginning of a context. Throws std::invalid_argument if empty, or for n outside
    // 1..n_max or times that are not > 0. growth: what an earlier curve learned of depth.
    explicit cost_curve(const std::map<int32_t, double> & measured, depth_growth growth = {},
                        expert_count experts = {});

    // so many tokens are before the rows from now on, of each sequence on average
    void set_depth(float n_past) { depth_ = n_past / 1000.0f; }

    // as of now, for any n >= 1; 0 for n <= 0
    float at(int32_t n) const {
        return n <= 0 ? 0.0f : base(n) + depth_ * (growth_.per_pass + growth_.per_row * static_cast<float>(n));
    }

    // a real pass over n rows took so long
    void observe(int32_t n, double t_us);

    // the largest n that was seen
    int32_t n_last() const { return n_last_; }

    float drift() const { return drift_; }

    depth_growth growth() const { return growth_; }

    const std::map<int32_t, double> & measured() const { return measured_; }

    // the same, less where passes were faster, and what was seen above the last one
    std::map<int32_t, double> corrected() const;

  private:
    float base(int32_t n) const {
        return drift_ * (n <= n_max ? now_[n] : now_[n_max] * static_cast<float>(n) / static_cast<float>(n_max));
    }

    void set_last(int32_t n);
    void observe_faster(int32_t n, float t_us);

    std::map<int32_t, double> measured_;
    bool                      has_experts_ = false;

    std::array<float, n_max + 1> work_{}; // that n rows are in proportion to, before they are seen
    std::array<float, n_max + 1> now_{};  // without the drift
    std::array<float, n_max + 1> variance_{};
    int32_t                      n_last_         = 0;
    float                        drift_          = 1.0f;
    float                        drift_variance_ = 0.0f;
    float                        depth_          = 0.0f;
    depth_growth                 growth_, growth_variance_;
};

} // namespace eagle3
