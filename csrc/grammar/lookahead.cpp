#include "grammar/lookahead.h"

#include "grammar/budget.h"

#include <cmath>
#include <exception>

namespace eagle3 {

namespace {

constexpr uint64_t max_ticks = 10000; // about 5 ms: slower grammars are not worth asking

} // namespace

// The sampler as it will be after the path.
llama_sampler * grammar_lookahead::after(const std::vector<llama_token> & path) {
    if (path.empty()) {
        return sampler_;
    }
    auto & found = paths_[path];
    if (!found) {
        found.reset(llama_sampler_clone(after({ path.begin(), path.end() - 1 })));
        llama_sampler_accept(found.get(), path.back());
    }
    return found.get();
}

std::vector<bool> grammar_lookahead::allowed(const std::vector<llama_token> & path,
                                             const std::vector<llama_token> & tokens) {
    std::vector<bool> result(tokens.size(), true);
    if (has_failed_ || tokens.empty()) {
        return result;
    }
    std::vector<llama_token_data> candidates;
    for (const llama_token token : tokens) {
        candidates.push_back({ token, 0.0f, 0.0f });
    }
    llama_token_data_array cur_p = { candidates.data(), candidates.size(), /*.selected =*/-1, /*.sorted =*/false };
    try {
        const grammar_budget::scope scope(max_ticks);
        llama_sampler_apply(after(path), &cur_p);
    } catch (const std::exception &) { // if the text comes here, its own sampler will throw too
        has_failed_ = true;
        return result;
    }
    for (size_t i = 0; i < tokens.size(); ++i) {
        result[i] = candidates[i].logit != -INFINITY;
    }
    return result;
}

} // namespace eagle3
