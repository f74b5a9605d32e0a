#include "drafter/foresight.h"

#include <algorithm>
#include <cmath>

namespace eagle3 {

namespace {

// A token that top-k, top-p or min-p cut by the drafter's logits may be left by the target's: so it is not removed, but
// its score is lowered by this.
constexpr double cut_penalty = 3.0;

// How many of the candidates, whose probabilities descend, are left by top-k, top-p and min-p.
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

// attempt: the number of draws before that the grammar refuses.
void order_by_noise(const gumbel_noise & noise, uint32_t n_ahead, uint32_t attempt,
                    std::vector<draft_candidate> & candidates) {
    std::vector<std::pair<double, size_t>> by_logit;
    for (size_t i = 0; i < candidates.size(); ++i) {
        const auto bias = noise.biases.find(candidates[i].id);
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
            score =
                score / noise.temperature + noise(candidates[index].id, n_ahead, attempt) - (i < n ? 0.0 : cut_penalty);
            best = std::max(best, score);
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
}

std::vector<bool> allowed(grammar_lookahead & rules, const std::vector<llama_token> & path,
                          const std::vector<draft_candidate> & candidates) {
    std::vector<llama_token> tokens;
    for (const draft_candidate & c : candidates) {
        tokens.push_back(c.id);
    }
    return rules.allowed(path, tokens);
}

// Removes what is forbidden, and gives its probability to the others.
void keep(const std::vector<bool> & allowed, std::vector<draft_candidate> & candidates) {
    double sum = 0.0;
    size_t n   = 0;
    for (size_t i = 0; i < candidates.size(); ++i) {
        if (allowed[i]) {
            candidates[n++] = candidates[i];
        } else {
            sum += static_cast<double>(candidates[i].p);
        }
    }
    candidates.resize(n);
    for (draft_candidate & c : candidates) {
        c.p = static_cast<float>(std::min(1.0, static_cast<double>(c.p) / std::max(1.0 - sum, 1e-6)));
    }
}

} // namespace

void foresight::order(const std::vector<llama_token> & path, const std::function<llama_token(int32_t)> & to_target,
                      std::vector<draft_candidate> & candidates, int32_t n_top) const {
    for (draft_candidate & c : candidates) {
        c.id = to_target(c.id);
    }
    candidates.erase(
        std::remove_if(candidates.begin(), candidates.end(), [](const draft_candidate & c) { return c.id < 0; }),
        candidates.end());
    const auto n_ahead = static_cast<uint32_t>(path.size());
    uint32_t   attempt = 0;
    if (rules && noise && rules->redraws()) {
        std::vector<draft_candidate> drawn = candidates;
        order_by_noise(*noise, n_ahead, 0, drawn);
        drawn.resize(std::min<size_t>(drawn.size(), 1));
        attempt = drawn.empty() || allowed(*rules, path, drawn).front() ? 0 : 1;
    }
    if (rules) {
        keep(allowed(*rules, path, candidates), candidates);
    }
    if (noise) {
        order_by_noise(*noise, n_ahead, attempt, candidates);
    }
    candidates.resize(std::min(candidates.size(), static_cast<size_t>(n_top)));
}

} // namespace eagle3
