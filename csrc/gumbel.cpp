#include "gumbel.h"

#include "gumbel_race.h"

#include <algorithm>
#include <cmath>
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
    // 52 bits and a half: a double that is neither 0 nor 1
    const uint64_t bits = (static_cast<uint64_t>(words[i]) << 20) | (words[i + 1] >> 12);
    return (static_cast<double>(bits) + 0.5) * 0x1p-52;
}

double gumbel_noise::operator()(llama_token token, uint32_t n_ahead, uint32_t attempt) const {
    return -std::log(-std::log1p(-uniform(words(token, n_ahead, attempt), token)));
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

float max_logit(const llama_token_data_array & cur_p) {
    constexpr size_t n_side = 8; // maxima that are computed side by side, since each waits for the one before
    float            found[n_side];
    std::fill(found, found + n_side, -INFINITY);
    for (size_t i = 0; i < cur_p.size; ++i) {
        found[i % n_side] = std::max(found[i % n_side], cur_p.data[i].logit);
    }
    return *std::max_element(found, found + n_side);
}

void apply(llama_sampler * smpl, llama_token_data_array * cur_p) {
    gumbel_context & ctx = context_of(smpl);
    if (cur_p->size == 0) {
        cur_p->selected = -1;
        return;
    }
    gumbel_race race{ *ctx.noise, ctx.n_refused++, max_logit(*cur_p) };
    const bool  are_equal = race.max_l == -INFINITY;

    philox_counter words{};
    llama_token    pair = -1; // whose words they are
    for (size_t i = are_equal ? 0 : enter_by_avx2(race, cur_p->data, cur_p->size); i < cur_p->size; ++i) {
        llama_token_data & candidate = cur_p->data[i];
        candidate.p                  = are_equal ? 1.0f : std::exp(candidate.logit - race.max_l);
        race.sum += candidate.p;
        if (!(candidate.p > 0.0f)) {
            continue;
        }
        if (candidate.id / 2 != pair) {
            pair  = candidate.id / 2;
            words = race.noise.words(candidate.id, 0, race.attempt);
        }
        race.enter(static_cast<int64_t>(i), candidate.p, gumbel_noise::uniform(words, candidate.id));
    }
    cur_p->selected    = race.selected;
    const double scale = 1.0 / race.sum;
    for (size_t i = 0; i < cur_p->size; ++i) {
        cur_p->data[i].p = static_cast<float>(cur_p->data[i].p * scale);
    }
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
