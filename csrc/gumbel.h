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

// The noise that a text is sampled with. The token with the greatest logit / temperature + noise is drawn from the
// softmax (Gumbel-max). The noise depends only on the seed, the number of tokens drawn before and the token, so a
// drafter can compute it too ("Drafter-invariant speculative decoding", arXiv 2408.07978).
struct gumbel_noise {
    uint32_t seed     = 0;
    uint32_t position = 0; // number of tokens of the text that were drawn

    // the samplers between logits and the draw that drafters regard
    float   temperature = 1.0f;
    int32_t top_k       = 0; // 0 = off
    float   top_p       = 1.0f;
    float   min_p       = 0.0f;

    std::unordered_map<llama_token, float> biases;

    // The random words of a token and its neighbour, the even one first, n_ahead positions after the next one. attempt:
    // the number of draws for this position that were refused.
    philox_counter words(llama_token token, uint32_t n_ahead = 0, uint32_t attempt = 0) const;

    // A uniform number in (0, 1).
    static double uniform(const philox_counter & words, llama_token token);

    // The noise: -log(-log(1 - uniform)).
    double operator()(llama_token token, uint32_t n_ahead = 0, uint32_t attempt = 0) const;
};

// As llama_sampler_init_dist, with this noise: draws from the softmax of the candidates that are left. Each accepted
// token increases the position.
llama_sampler * gumbel_sampler_init(std::shared_ptr<gumbel_noise> noise);

} // namespace eagle3
