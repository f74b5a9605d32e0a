#pragma once

#include <array>
#include <cstdint>
#include <map>

namespace eagle3 {

// Microseconds of one pass over n rows, for n = 1, 2, ...: a staircase, one value per n and no fit through them.
//
// Between two measured n the larger of both values is taken, above the last one that was seen it grows in proportion:
// upper estimates, so that nothing is chosen because of a guess. Real timings refine it by two factors: a drift that
// all n share, since a growing context or a busy machine slows everything down, and a correction per n. Both are scalar
// Kalman filters in the logarithm, which split what a timing says by how uncertain each of them is. A timing far below
// what was measured stands at once: a busy machine makes passes slower, nothing makes them faster.
class cost_curve {
  public:
    static constexpr int32_t n_max = 128; // larger n are extrapolated, and not observed

    // n -> microseconds. Throws std::invalid_argument if empty, or for n outside 1..n_max or times that are not > 0.
    explicit cost_curve(const std::map<int32_t, double> & measured);

    // as of now, for any n >= 1; 0 for n <= 0
    float at(int32_t n) const {
        if (n <= 0) {
            return 0.0f;
        }
        return n <= n_max ? now_[n] * drift_ : now_[n_max] * drift_ * static_cast<float>(n) / n_max;
    }

    // a real pass over n rows took so long
    void observe(int32_t n, double t_us);

    // the largest n that was seen
    int32_t n_last() const { return n_last_; }

    float drift() const { return drift_; }

    const std::map<int32_t, double> & measured() const { return measured_; }

    // the same, less where passes were faster, and what was seen above the last one
    std::map<int32_t, double> corrected() const;

  private:
    void set_last(int32_t n);

    std::map<int32_t, double> measured_;

    std::array<float, n_max + 1> now_{}; // without the drift
    std::array<float, n_max + 1> variance_{};
    int32_t                      n_last_         = 0;
    float                        drift_          = 1.0f;
    float                        drift_variance_ = 0.0f;
};

} // namespace eagle3
