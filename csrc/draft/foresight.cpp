#include "draft/foresight.h"

#include <algorithm>
#include <cmath>

namespace eagle3 {

namespace {

// what the head's cut takes away the target's own, of other logits, may leave: so much is taken from its score
constexpr double cut_penalty = 3.0;

// which of the candidates, by their probabilities in descending order, top-k, top-p and min-p leave
size_t n_left(const gumbel_noise & noise, const std::vector<std::pair<double, size_t>> & by_logit) {
    size_t n = by_logit.size();
    if (noise.top_k > 0) {
        n = std::min(n, static_cast<size_t>(noise.top_k));
    }
    const double best = by_logit.front().first;
    double       sum  = 0.0;
    for (size_t i = 0; i < n; ++i) {
        sum += std::exp(by_logit[i].first - best);
    }
    double cum = 0.0;
    for (size_t i = 0; i < n; ++i) {
        const double p = std::exp(by_logit[i].first - best);
        if (i > 0 && (cum >= noise.top_p * sum || p < noise.min_p)) {
            return i;
        }
        cum += p;
    }
    return n;
}

} // namespace

void order_by_noise(const gumbel_noise & noise, uint32_t n_ahead, const std::function<llama_token(int32_t)> & to_target,
                    std::vector<draft_candidate> & candidates, int32_t n_top) {
    std::vector<std::pair<double, size_t>> by_logit;
    for (size_t i = 0; i < candidates.size(); ++i) {
        const auto bias = noise.biases.find(to_target(candidates[i].id));
        by_logit.emplace_back(std::log(static_cast<double>(candidates[i].p)) +
                                  (bias == noise.biases.end() ? 0.0 : static_cast<double>(bias->second)),
                              i);
    }
    std::stable_sort(by_logit.begin(), by_logit.end(),
                     [](const auto & a, const auto & b) { return a.first > b.first; });
    if (!by_logit.empty() && std::isfinite(by_logit.front().first)) {
        const size_t n   = n_left(noise, by_logit);
        double       sum = 0.0, best = -INFINITY;
        for (size_t i = 0; i < by_logit.size(); ++i) {
            auto & [score, index] = by_logit[i];
            score                 = score / noise.temperature + noise(to_target(candidates[index].id), n_ahead) -
                                    (i < n ? 0.0 : cut_penalty);
            best                  = std::max(best, score);
        }
        for (const auto & [score, index] : by_logit) {
            sum += std::exp(score - best);
        }
        for (const auto & [score, index] : by_logit) {
            candidates[index].p = static_cast<float>(std::exp(score - best) / sum);
        }
        std::stable_sort(candidates.begin(), candidates.end(),
                         [](const draft_candidate & a, const draft_candidate & b) { return a.p > b.p; });
    }
    candidates.resize(std::min(candidates.size(), static_cast<size_t>(n_top)));
}

} // namespace eagle3
