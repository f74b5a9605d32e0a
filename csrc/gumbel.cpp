#include "gumbel.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace eagle3 {

philox_counter philox4x32(philox_counter counter, philox_key key) {
    for (int i = 0; i < 10; ++i) {
        const uint64_t a = uint64_t{ 0xD2511F53 } * counter[0];
        const uint64_t b = uint64_t{ 0xCD9E8D57 } * counter[2];
        counter          = { static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
                             static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a) };
        key[0] += 0x9E3779B9;
        key[1] += 0xBB67AE85;
    }
    return counter;
}

philox_counter gumbel_noise::words(llama_token token, uint32_t n_ahead, uint32_t attempt) const {
    return philox4x32({ static_cast<uint32_t>(token) / 2, position + n_ahead, attempt, 0 }, { seed, 0 });
}

double gumbel_noise::uniform(const philox_counter & words, llama_token token) {
    const size_t   i    = token % 2 == 0 ? 0 : 2;
    // 52 bits: with the half behind them they are a double, which is neither 0 nor 1
    const uint64_t bits = (static_cast<uint64_t>(words[i]) << 20) | (words[i + 1] >> 12);
    return (static_cast<double>(bits) + 0.5) * 0x1p-52;
}

double gumbel_noise::operator()(llama_token token, uint32_t n_ahead) const {
    return -std::log(-std::log1p(-uniform(words(token, n_ahead), token)));
}

namespace {

struct gumbel_context {
    std::shared_ptr<gumbel_noise> noise;
    uint32_t                      n_refused = 0; // draws since a token was accepted
};

gumbel_context & context_of(const llama_sampler * smpl) {
    return *static_cast<gumbel_context *>(smpl->ctx);
}

llama_sampler * make(gumbel_context ctx);

// The greatest logit + noise has the smallest w / p, where p = exp(logit) and w = -log(1 - uniform), which is never
// less than uniform: most tokens need no logarithm.
void apply(llama_sampler * smpl, llama_token_data_array * cur_p) {
    gumbel_context & ctx = context_of(smpl);
    cur_p->selected      = cur_p->size == 0 ? -1 : 0;

    float max_l = -INFINITY;
    for (size_t i = 0; i < cur_p->size; ++i) {
        max_l = std::max(max_l, cur_p->data[i].logit);
    }
    double         best = std::numeric_limits<double>::infinity();
    double         sum  = 0.0;
    philox_counter words{};
    llama_token    pair = -1; // whose words they are
    for (size_t i = 0; i < cur_p->size; ++i) {
        llama_token_data & candidate = cur_p->data[i];
        candidate.p                  = max_l == -INFINITY ? 1.0f : std::exp(candidate.logit - max_l);
        sum += candidate.p;
        if (!(candidate.p > 0.0f)) {
            continue;
        }
        if (candidate.id / 2 != pair) {
            pair  = candidate.id / 2;
            words = ctx.noise->words(candidate.id, 0, ctx.n_refused);
        }
        const double u = gumbel_noise::uniform(words, candidate.id);
        if (u < best * candidate.p) {
            const double w = -std::log1p(-u) / candidate.p;
            if (w < best) {
                best            = w;
                cur_p->selected = static_cast<int64_t>(i);
            }
        }
    }
    for (size_t i = 0; i < cur_p->size; ++i) {
        cur_p->data[i].p = static_cast<float>(cur_p->data[i].p / sum);
    }
    ctx.n_refused++;
}

llama_sampler_i make_interface() {
    llama_sampler_i iface = {};
    iface.name            = [](const llama_sampler *) {
        return "gumbel";
    };
    iface.accept = [](llama_sampler * smpl, llama_token) {
        gumbel_context & ctx = context_of(smpl);
        ctx.n_refused        = 0;
        ctx.noise->position++;
    };
    iface.apply = apply;
    iface.reset = [](llama_sampler * smpl) {
        gumbel_context & ctx = context_of(smpl);
        ctx.n_refused = ctx.noise->position = 0;
    };
    iface.clone = [](const llama_sampler * smpl) {
        const gumbel_context & ctx = context_of(smpl);
        return make({ std::make_shared<gumbel_noise>(*ctx.noise), ctx.n_refused });
    };
    iface.free = [](llama_sampler * smpl) {
        delete &context_of(smpl);
    };
    return iface;
}

llama_sampler * make(gumbel_context ctx) {
    static llama_sampler_i iface = make_interface();
    return llama_sampler_init(&iface, new gumbel_context(std::move(ctx)));
}

} // namespace

llama_sampler * gumbel_sampler_init(std::shared_ptr<gumbel_noise> noise) {
    return make({ std::move(noise) });
}

} // namespace eagle3
