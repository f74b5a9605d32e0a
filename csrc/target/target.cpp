#include "target/target.h"

#include "error.h"

#include "ggml.h"

#include <algorithm>
#include <map>
#include <set>

namespace eagle3 {

target::target(llama_context * ctx, const llama_model * model, feature_tap * tap) : ctx(ctx), tap_ptr(tap) {
    if (!ctx || !model) {
        throw std::invalid_argument("context and model must not be null");
    }
    if (llama_get_model(ctx) != model) {
        throw std::invalid_argument("the context belongs to another model");
    }
    if (llama_model_has_encoder(model) || !llama_model_has_decoder(model)) {
        throw error("models with an encoder cannot be used: decoder-only models can");
    }
    n_vocab_tgt = llama_vocab_n_tokens(llama_model_get_vocab(model));
    n_batch     = llama_n_batch(ctx);
    n_ctx       = llama_n_ctx_seq(ctx);
    n_seq_max   = llama_n_seq_max(ctx);
    n_swa       = llama_model_n_swa(model);
    if (tap) {
        tap->attach(ctx);
    }
}

void target::check_open() const {
    if (!ctx) {
        throw error("the target is closed");
    }
}

void target::check_tokens(const std::vector<llama_token> & tokens) const {
    check_open();
    if (tokens.empty()) {
        throw std::invalid_argument("no tokens to decode");
    }
    if ((int32_t) tokens.size() > n_batch) {
        throw std::invalid_argument(
            format("%zu tokens do not fit into one batch of n_batch = %d", tokens.size(), n_batch));
    }
    for (llama_token id : tokens) {
        if (id < 0 || id >= n_vocab_tgt) {
            throw std::invalid_argument(format("token %d is not in the target's vocabulary of %d", id, n_vocab_tgt));
        }
    }
}

void target::decode(const std::vector<llama_token> & tokens, int32_t n_past, bool logits_all) {
    check_tokens(tokens);
    if (n_past < 0) {
        throw std::invalid_argument(format("n_past must not be negative, not %d", n_past));
    }
    const int32_t n = tokens.size();
    if (n > n_ctx - n_past) {
        throw context_full_error(
            format("%d tokens after %d do not fit into the context of n_ctx = %d", n, n_past, n_ctx));
    }
    forget(0, n_past);

    batch_tokens = tokens;
    batch_pos.resize(n);
    for (int32_t i = 0; i < n; ++i) {
        batch_pos[i] = n_past + i;
    }
    batch_n_seq.assign(n, 1);
    batch_seq.assign(n, &seq_zero);
    batch_logits.assign(n, logits_all);
    batch_logits[n - 1] = true;
    run();
}

void target::decode_batch(const std::vector<llama_token> & tokens, const std::vector<llama_pos> & pos,
                          const std::vector<std::vector<llama_seq_id>> & seq_ids, const std::vector<bool> & logits) {
    check_tokens(tokens);
    const size_t n = tokens.size();
    if (pos.size() != n || seq_ids.size() != n || logits.size() != n) {
        throw std::invalid_argument(format("%zu tokens, but %zu positions, %zu sequence lists and %zu logits flags", n,
                                           pos.size(), seq_ids.size(), logits.size()));
    }
    for (size_t i = 0; i < n; ++i) {
        if (pos[i] < 0) {
            throw std::invalid_argument(format("position %d of token %zu is negative", pos[i], i));
        }
        if (pos[i] >= n_ctx) {
            throw context_full_error(
                format("position %d of token %zu is outside the context of n_ctx = %d", pos[i], i, n_ctx));
        }
        if (seq_ids[i].empty() ||
            std::set<llama_seq_id>(seq_ids[i].begin(), seq_ids[i].end()).size() != seq_ids[i].size()) {
            throw std::invalid_argument(format("token %zu needs one or more different sequence ids", i));
        }
        for (llama_seq_id s : seq_ids[i]) {
            if (s < 0 || s >= n_seq_max) {
                throw std::invalid_argument(
                    format("sequence id %d of token %zu is out of range: n_seq_max = %d", s, i, n_seq_max));
            }
        }
    }

    batch_tokens = tokens;
    batch_pos    = pos;
    batch_seqs   = seq_ids;
    batch_n_seq.resize(n);
    batch_seq.resize(n);
    for (size_t i = 0; i < n; ++i) {
        batch_n_seq[i] = batch_seqs[i].size();
        batch_seq[i]   = batch_seqs[i].data();
    }
    batch_logits.assign(logits.begin(), logits.end());
    run();
}

static const char * decode_problem(int32_t ret) {
    switch (ret) {
        case 2: return "aborted";
        case -1: return "invalid batch";
        case -2: return "no memory";
        default: return "fatal error";
    }
}

void target::run() {
    decoded = false;
    if (tap_ptr && tap_ptr->needs_all_outputs()) {
        std::fill(batch_logits.begin(), batch_logits.end(), true);
    }

    llama_batch batch = {};
    batch.n_tokens    = batch_tokens.size();
    batch.token       = batch_tokens.data();
    batch.pos         = batch_pos.data();
    batch.n_seq_id    = batch_n_seq.data();
    batch.seq_id      = batch_seq.data();
    batch.logits      = batch_logits.data();

    const int64_t t_start = ggml_time_us();
    try {
        if (tap_ptr) {
            tap_ptr->begin(batch);
        }
        const int32_t ret = llama_decode(ctx, batch);
        if (ret == 1) {
            throw context_full_error(
                format("no room for %d tokens in the context (n_ctx = %d): shorten the text or enlarge n_ctx",
                       batch.n_tokens, n_ctx));
        }
        if (ret != 0) {
            throw error(format("llama_decode failed with %d (%s)", ret, decode_problem(ret)));
        }
        if (tap_ptr) {
            tap_ptr->end();
        } else {
            llama_synchronize(ctx);
        }
    } catch (const std::exception & e) {
        t_decode += ggml_time_us() - t_start;
        if (tap_ptr) {
            tap_ptr->abort();
        }
        // take back what some ubatches may have added
        std::map<llama_seq_id, llama_pos> first;
        for (int32_t i = 0; i < batch.n_tokens; ++i) {
            for (int32_t s = 0; s < batch.n_seq_id[i]; ++s) {
                const auto it = first.emplace(batch.seq_id[i][s], batch.pos[i]).first;
                it->second    = std::min(it->second, batch.pos[i]);
            }
        }
        for (const auto & [seq, pos] : first) {
            llama_memory_seq_rm(llama_get_memory(ctx), seq, pos, -1);
        }
        if (dynamic_cast<const error *>(&e)) {
            throw;
        }
        throw error(format("llama_decode failed: %s", e.what()));
    }
    t_decode += ggml_time_us() - t_start;
    decoded = true;
}

void target::forget(llama_seq_id seq, llama_pos n_past) {
    llama_memory_t mem = llama_get_memory(ctx);

    const llama_pos pos_max = llama_memory_seq_pos_max(mem, seq);
    if (n_past > pos_max + 1) {
        throw error(format("position %d would leave a gap: the target's memory ends at %d", n_past, pos_max + 1));
    }
    if (n_past == pos_max + 1) {
        return;
    }
    // a sliding-window cache forgets what has left the window, and the window moves back with n_past
    if (n_swa > 0 && n_past > 0 && llama_memory_seq_pos_min(mem, seq) > std::max(0, n_past - n_swa)) {
        throw error(format(
            "cannot go back to position %d: the sliding-window cache of the target (n_swa = %d) has forgotten what "
            "came before; use swa_full = True or start from 0",
            n_past, n_swa));
    }
    if (!llama_memory_seq_rm(mem, seq, n_past, -1)) {
        throw error(
            format("the target's memory cannot go back from position %d to %d: it is recurrent and keeps no snapshot",
                   pos_max + 1, n_past));
    }
}

void target::trim(int32_t n_past) {
    check_open();
    if (n_past < 0) {
        throw std::invalid_argument(format("n_past must not be negative, not %d", n_past));
    }
    forget(0, n_past);
}

const float * target::logits(int32_t row) const {
    check_open();
    if (!decoded) {
        throw error("no logits: nothing was decoded, or the last decode failed");
    }
    if (row < 0 || row >= (int32_t) batch_logits.size()) {
        throw std::invalid_argument(
            format("row %d is out of range: the last batch had %zu tokens", row, batch_logits.size()));
    }
    if (!batch_logits[row]) {
        throw std::invalid_argument(format("row %d has no logits: they were not asked for", row));
    }
    const float * res = llama_get_logits_ith(ctx, row);
    if (!res) {
        throw error(format("llama.cpp has no logits for row %d", row));
    }
    return res;
}

llama_token target::sample(llama_sampler * smpl, int32_t row) const {
    if (!smpl) {
        throw std::invalid_argument("the sampler must not be null");
    }
    logits(row);
    return llama_sampler_sample(smpl, ctx, row);
}

llama_token target::argmax(int32_t row) const {
    const float * x = logits(row);

    // independent lanes, so that the compiler can use vector instructions
    constexpr int32_t n_lanes = 16;
    float             top[n_lanes];
    std::fill(top, top + n_lanes, x[0]);
    int32_t i = 0;
    for (; i + n_lanes <= n_vocab_tgt; i += n_lanes) {
        for (int32_t k = 0; k < n_lanes; ++k) {
            top[k] = x[i + k] > top[k] ? x[i + k] : top[k];
        }
    }
    float x_max = top[0];
    for (int32_t k = 1; k < n_lanes; ++k) {
        x_max = top[k] > x_max ? top[k] : x_max;
    }
    for (; i < n_vocab_tgt; ++i) {
        x_max = x[i] > x_max ? x[i] : x_max;
    }
    const float * it = std::find(x, x + n_vocab_tgt, x_max);
    return it == x + n_vocab_tgt ? 0 : it - x; // NaN equals nothing
}

} // namespace eagle3
