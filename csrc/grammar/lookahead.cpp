#include "grammar/lookahead.h"

#include <cmath>
#include <ctime>
#include <exception>

namespace eagle3 {

namespace {

constexpr double max_seconds = 0.005; // of CPU time: slower grammars are not worth asking again in this step

double cpu_seconds() {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

} // namespace

// the sampler as it will be then
llama_sampler * grammar_lookahead::behind(const std::vector<llama_token> & path) {
    if (path.empty()) {
        return sampler_;
    }
    auto & found = paths_[path];
    if (!found) {
        found.reset(llama_sampler_clone(behind({ path.begin(), path.end() - 1 })));
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
    const double           start = cpu_seconds();
    try {
        llama_sampler_apply(behind(path), &cur_p);
        has_failed_ = cpu_seconds() - start > max_seconds;
    } catch (const std::exception &) { // the text's own sampler will say it, if it comes to that
        has_failed_ = true;
        return result;
    }
    for (size_t i = 0; i < tokens.size(); ++i) {
        result[i] = candidates[i].logit != -INFINITY;
    }
    return result;
}

} // namespace eagle3
