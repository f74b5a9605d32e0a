#pragma once

#include "llama.h"

#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>

namespace eagle3 {

using philox_counter = std::array<uint32_t, 4>;
using philox_key     = std::array<uint32_t, 2>;

// Philox4x32-10, "Parallel random numbers: as easy as 1, 2, 3" (Salmon et al., SC11)
philox_counter philox4x32(philox_counter counter, philox_key key);

// The dice of one text. The token with the greatest logit / temperature + noise is one drawn from the softmax
// (Gumbel-max). The noise depends on the seed, on how many tokens were drawn before and on the token alone, so that a
// draft can know what the target will draw with ("Drafter-invariant speculative decoding", arXiv 2408.07978).
struct gumbel_noise {
    uint32_t seed     = 0;
    uint32_t position = 0; // tokens of the text that were drawn

    // what comes between logits and the draw, as far as a draft looks at it
    float   temperature = 1.0f;
    int32_t top_k       = 0; // 0 = off
    float   top_p       = 1.0f;
    float   min_p       = 0.0f;

    std::unordered_map<llama_token, float> biases;

    // Of a token and its neighbour, the even one first, after n_ahead others that are not drawn yet. attempt: draws
    // for the same position that were refused.
    philox_counter words(llama_token token, uint32_t n_ahead = 0, uint32_t attempt = 0) const;

    // in (0, 1)
    static double uniform(const philox_counter & words, llama_token token);

    // -log(-log(1 - uniform))
    double operator()(llama_token token, uint32_t n_ahead = 0, uint32_t attempt = 0) const;
};

// What llama_sampler_init_dist is, with this noise: a draw from the softmax of the candidates that are left. Each
// accepted token moves the position on.
llama_sampler * gumbel_sampler_init(std::shared_ptr<gumbel_noise> noise);

} // namespace eagle3
