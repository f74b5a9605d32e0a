// what the rows of the last batch say: logits, and tokens drawn from them

#include "error.h"
#include "target/logits.h"
#include "target/target.h"

#include <algorithm>
#include <cmath>

namespace eagle3 {

void target::check_row(int32_t row) const {
    check_open();
    if (!decoded) {
        throw error("no logits: nothing was decoded, or the last decode failed");
    }
    if (row < 0 || row >= static_cast<int32_t>(row_idxs.size())) {
        throw std::invalid_argument(
            format("row %d is out of range: the last batch had %zu tokens", row, row_idxs.size()));
    }
    if (!batch_logits[row_idxs[row]]) {
        throw std::invalid_argument(format("row %d has no logits: they were not asked for", row));
    }
}

const float * target::logits(int32_t row) const {
    if (row == -1) {
        check_open();
    } else {
        check_row(row);
    }
    if (argmax_used) {
        throw error(format("the logits of row %d are on the target's device, which took their argmax: decode again "
                           "without device_argmax",
                           row));
    }
    const float * res = llama_get_logits_ith(ctx, row == -1 ? -1 : row_idxs[row]);
    if (!res) {
        throw error(format("llama.cpp has no logits for row %d", row));
    }
    return res;
}

// what the sampler leaves is what the candidates then are
static llama_token select(llama_sampler * smpl, std::vector<llama_token_data> & candidates) {
    // a bias comes before what needs an order
    llama_token_data_array cur_p = { candidates.data(), candidates.size(), /*.selected =*/-1, /*.sorted =*/false };
    llama_sampler_apply(smpl, &cur_p);
    if (cur_p.selected < 0 || cur_p.selected >= static_cast<int64_t>(cur_p.size)) {
        throw error("the sampler selected no token");
    }
    const llama_token token = cur_p.data[cur_p.selected].id;
    if (cur_p.data != candidates.data()) {
        candidates.assign(cur_p.data, cur_p.data + cur_p.size);
    }
    candidates.resize(cur_p.size);
    return token;
}

[[noreturn]] static void throw_no_numbers() {
    throw logits_error(
        "the logits are no numbers: the model's file or a state that was loaded is damaged, or the model overflows");
}

// samplers sort, and NaN has no order
static void check_numbers(const float * logits, int32_t n) {
    if (has_nan(logits, n)) {
        throw_no_numbers();
    }
}

static bool is_allowed(llama_sampler * grammar, llama_token token) {
    llama_token_data       candidate = { token, 1.0f, 0.0f };
    llama_token_data_array cur_p     = { &candidate, 1, /*.selected =*/-1, /*.sorted =*/false };
    llama_sampler_apply(grammar, &cur_p);
    return candidate.logit != -INFINITY;
}

void target::look_at_all(const float * logits) {
    check_numbers(logits, n_vocab_tgt);
    candidates.resize(n_vocab_tgt);
    for (llama_token id = 0; id < n_vocab_tgt; ++id) {
        candidates[id] = { id, logits[id], 0.0f };
    }
}

llama_token target::sample(llama_sampler * smpl, int32_t row, int32_t n_best, llama_sampler * grammar) {
    if (!smpl) {
        throw std::invalid_argument("the sampler must not be null");
    }
    const float * x   = logits(row);
    const bool    few = n_best > 0 && n_best < n_vocab_tgt && best_candidates(x, n_vocab_tgt, n_best, candidates);
    if (!few && !grammar) {
        check_numbers(x, n_vocab_tgt);
        return llama_sampler_sample(smpl, ctx, row == -1 ? -1 : row_idxs[row]);
    }
    if (!few) {
        look_at_all(x);
    }
    return draw(smpl, grammar, x);
}

// from the candidates; logits: of all tokens, for a grammar that refuses what was drawn of them
llama_token target::draw(llama_sampler * smpl, llama_sampler * grammar, const float * logits) {
    llama_token token = select(smpl, candidates);
    if (grammar && !is_allowed(grammar, token)) {
        look_at_all(logits);
        llama_token_data_array cur_p = { candidates.data(), candidates.size(), /*.selected =*/-1, /*.sorted =*/false };
        llama_sampler_apply(grammar, &cur_p);
        token = select(smpl, candidates);
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

llama_token target::sample_from(llama_sampler * smpl, const float * logits, llama_sampler * grammar) {
    if (!smpl) {
        throw std::invalid_argument("the sampler must not be null");
    }
    look_at_all(logits);
    return draw(smpl, grammar, logits);
}

std::vector<llama_token_data> target::sampled_probs() const {
    std::vector<llama_token_data> res;
    for (const llama_token_data & candidate : candidates) {
        if (candidate.p > 0.0f) {
            res.push_back(candidate);
        }
    }
    std::stable_sort(res.begin(), res.end(),
                     [](const llama_token_data & a, const llama_token_data & b) { return a.p > b.p; });
    return res;
}

llama_token target::argmax(int32_t row) const {
    llama_token token = -1;
    if (argmax_used) {
        check_row(row);
        token = llama_get_sampled_token_ith(ctx, row_idxs[row]);
    } else {
        token = eagle3::argmax(logits(row), n_vocab_tgt);
    }
    if (token < 0 || token >= n_vocab_tgt) {
        throw_no_numbers();
    }
    return token;
}

} // namespace eagle3
