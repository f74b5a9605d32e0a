#include "target/row_sampler.h"

#include "error.h"
#include "target/logits.h"

#include <algorithm>
#include <cmath>

namespace eagle3 {

namespace {

bool is_allowed(llama_sampler * grammar, llama_token token) {
    llama_token_data       candidate = { token, 1.0f, 0.0f };
    llama_token_data_array cur_p     = { &candidate, 1, /*.selected =*/-1, /*.sorted =*/false };
    llama_sampler_apply(grammar, &cur_p);
    return candidate.logit != -INFINITY;
}

} // namespace

void throw_no_numbers() {
    throw logits_error(
        "the logits are no numbers: the model's file or a state that was loaded is damaged, or the model overflows");
}

// Makes all tokens candidates.
void row_sampler::set_candidates(const float * logits) {
    if (has_nan(logits, n_vocab_)) { // samplers sort, and NaN has no order
        throw_no_numbers();
    }
    candidates_.resize(n_vocab_);
    for (llama_token id = 0; id < n_vocab_; ++id) {
        candidates_[id] = { id, logits[id], 0.0f };
    }
}

// Applies the sampler, which leaves the candidates that it draws from.
llama_token row_sampler::select(llama_sampler * smpl) {
    // a bias must be added before anything that needs the order
    llama_token_data_array cur_p = { candidates_.data(), candidates_.size(), /*.selected =*/-1, /*.sorted =*/false };
    llama_sampler_apply(smpl, &cur_p);
    if (cur_p.selected < 0 || cur_p.selected >= static_cast<int64_t>(cur_p.size)) {
        throw error("the sampler selected no token");
    }
    const llama_token token = cur_p.data[cur_p.selected].id;
    if (cur_p.data != candidates_.data()) {
        candidates_.assign(cur_p.data, cur_p.data + cur_p.size);
    }
    candidates_.resize(cur_p.size);
    return token;
}

llama_token row_sampler::sample(llama_sampler * smpl, const float * logits, int32_t n_best, llama_sampler * grammar) {
    if (!smpl) {
        throw std::invalid_argument("the sampler must not be null");
    }
    if (n_best <= 0 || n_best >= n_vocab_ || !best_candidates(logits, n_vocab_, n_best, candidates_)) {
        set_candidates(logits);
    }
    llama_token token = select(smpl);
    if (grammar && !is_allowed(grammar, token)) {
        set_candidates(logits);
        llama_token_data_array cur_p = { candidates_.data(), candidates_.size(), /*.selected =*/-1,
                                         /*.sorted =*/false };
        llama_sampler_apply(grammar, &cur_p);
        token = select(smpl);
        if (!is_allowed(grammar, token)) {
            throw std::invalid_argument("the grammar allows only tokens that a bias or a penalty forbids");
        }
    }
    if (grammar) {
        llama_sampler_accept(grammar, token);
    }
    llama_sampler_accept(smpl, token);
    return token;
}

std::vector<llama_token_data> row_sampler::probs() const {
    std::vector<llama_token_data> res;
    for (const llama_token_data & candidate : candidates_) {
        if (candidate.p > 0.0f) {
            res.push_back(candidate);
        }
    }
    std::stable_sort(res.begin(), res.end(),
                     [](const llama_token_data & a, const llama_token_data & b) { return a.p > b.p; });
    return res;
}

} // namespace eagle3
