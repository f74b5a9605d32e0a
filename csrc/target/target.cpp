#include "target/target.h"

#include "error.h"
#include "load_guard.h"

#include "ggml.h"

#include <algorithm>
#include <map>
#include <new>
#include <set>

namespace eagle3 {

target::target(llama_context * ctx, const llama_model * model, feature_tap * tap, int32_t n_seq, int32_t n_guards) :
    ctx(ctx), tap_ptr(tap), n_seq(n_seq), n_guards(n_guards) {
    if (!ctx || !model) {
        throw std::invalid_argument("context and model must not be null");
    }
    if (llama_get_model(ctx) != model) {
        throw std::invalid_argument("the context belongs to another model");
    }
    if (llama_model_has_encoder(model) || !llama_model_has_decoder(model)) {
        throw error("models with an encoder cannot be used: decoder-only models can");
    }
    n_vocab_tgt  = llama_vocab_n_tokens(llama_model_get_vocab(model));
    n_batch      = llama_n_batch(ctx);
    n_ctx        = llama_n_ctx_seq(ctx);
    n_seq_max    = llama_n_seq_max(ctx);
    n_embd       = llama_model_n_embd_inp(model);
    n_ubatch_ctx = llama_n_ubatch(ctx);
    if (n_seq < 0 || n_seq > n_seq_max) {
        throw std::invalid_argument(format("n_seq = %d: the context has n_seq_max = %d", n_seq, n_seq_max));
    }
    if (n_seq == 0) {
        this->n_seq = n_seq_max;
    }
    if (n_guards != 0 && (n_guards != this->n_seq || n_guards > n_seq_max - this->n_seq)) {
        throw std::invalid_argument(
            format("n_guards = %d: expected 0 or n_seq = %d, of n_seq_max = %d", n_guards, this->n_seq, n_seq_max));
    }

    unified                    = llama_n_ctx_seq(ctx) == llama_n_ctx(ctx);
    // images take fewer positions than tokens there, and more than cells
    const llama_rope_type rope = llama_model_rope_type(model);
    may_leave_gaps             = rope == LLAMA_ROPE_TYPE_MROPE || rope == LLAMA_ROPE_TYPE_IMROPE;
    for (llama_seq_id s = 0; s < n_seq_max; ++s) {
        rounds.emplace_back(ctx, s);
    }
    is_remote = eagle3::logits_are_remote(model);
    can_share = unified && rounds[0].kind() == rollback_kind::trim;
    positions.resize(n_seq_max);
    drafts.resize(n_seq_max);
    loans.resize(n_seq_max);
    if (n_guards > 0 && !can_share) {
        throw std::invalid_argument("n_guards are for a pool of cells, without recurrent states");
    }
    for (llama_seq_id s = 0; s < n_guards; ++s) {
        loans[this->n_seq + s].owner = s;
    }
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
    if (llama_model_n_layer(llama_get_model(ctx)) == 0) {
        throw error("the model was loaded with vocab_only: without weights nothing can be evaluated");
    }
    if (tokens.empty()) {
        throw std::invalid_argument("no tokens to decode");
    }
    for (llama_token id : tokens) {
        if (id < 0 || id >= n_vocab_tgt) {
            throw std::invalid_argument(format("token %d is not in the target's vocabulary of %d", id, n_vocab_tgt));
        }
    }
}

void target::check_fits(size_t n_tokens) const {
    if (n_tokens > static_cast<size_t>(n_batch)) {
        throw std::invalid_argument(format("%zu tokens do not fit into one batch of n_batch = %d", n_tokens, n_batch));
    }
}

void target::check_seq(llama_seq_id seq_id) const {
    check_open();
    if (seq_id < 0 || seq_id >= n_seq) {
        throw std::invalid_argument(format("sequence id %d is out of range: the context has n_seq_max = %d%s", seq_id,
                                           n_seq_max,
                                           n_seq < n_seq_max ? ", the last of them for leaves of trees" : ""));
    }
}

recurrent_round & target::round(llama_seq_id seq_id) {
    check_seq(seq_id);
    return rounds[seq_id];
}

// what does not depend on the memory; returns how many ids for leaves the part needs
int32_t target::check_part(const batch_part & part) const {
    check_seq(part.seq_id);
    check_tokens(part.tokens);
    if (part.n_past < 0) {
        throw std::invalid_argument(format("n_past must not be negative, not %d", part.n_past));
    }
    const int32_t n = static_cast<int32_t>(part.tokens.size());
    if (n > n_ctx - part.n_past) {
        throw context_full_error(
            format("%d tokens after %d do not fit into the context of n_ctx = %d", n, part.n_past, n_ctx));
    }
    if (!part.media.embd.empty()) {
        check_media(part);
        return 0;
    }
    if (part.parents.empty()) {
        if (part.is_draft) {
            rounds[part.seq_id].check(n);
        }
        return 0;
    }
    if (part.parents.size() != part.tokens.size()) {
        throw std::invalid_argument(format("%d tokens, but %zu parents", n, part.parents.size()));
    }
    std::vector<bool> is_leaf(n, true);
    for (int32_t i = 1; i < n; ++i) {
        if (part.parents[i] < 0 || part.parents[i] >= i) {
            throw std::invalid_argument(
                format("drafted token %d: expected a parent before it, found %d", i - 1, part.parents[i] - 1));
        }
        is_leaf[part.parents[i]] = false;
    }
    const auto n_leaf = static_cast<int32_t>(std::count(is_leaf.begin(), is_leaf.end(), true));
    if (n_leaf > n_leaves_max()) {
        throw std::invalid_argument(
            format("the tree has %d leaves, the target's context allows %d%s", n_leaf, n_leaves_max(),
                   rounds[0].kind() == rollback_kind::trim ? ": load it with a larger draft_tree_tokens"
                                                           : ", for it keeps a recurrent state: draft chains"));
    }
    return n_leaf - 1;
}

void target::check_media(const batch_part & part) const {
    const media_piece & media = part.media;
    const auto          n     = static_cast<int32_t>(part.tokens.size());
    if (media.embd.size() != static_cast<size_t>(n) * n_embd) {
        throw std::invalid_argument(format("expected %d rows of %d values, found %zu values: the projector belongs to "
                                           "another model",
                                           n, n_embd, media.embd.size()));
    }
    if (media.pos.size() != (may_leave_gaps ? static_cast<size_t>(n) * 4 : 0)) {
        throw std::invalid_argument(format("expected %d positions for each of %d rows, found %zu in all",
                                           may_leave_gaps ? 4 : 0, n, media.pos.size()));
    }
    if (part.is_draft || !part.parents.empty()) {
        throw std::invalid_argument("rows of an image cannot be a draft");
    }
    if (!media.causal && n > n_ubatch_ctx) {
        throw error(format("an image of %d rows does not fit into n_ubatch = %d, and its rows see each other: load the "
                           "model with n_ubatch and n_batch of %d or more",
                           n, n_ubatch_ctx, n));
    }
    const auto & spans = positions[part.seq_id].spans();
    if (media.offset < 0 || media.offset > part.n_past ||
        (media.offset > 0 && (spans.empty() || spans.back().first + media.offset != part.n_past ||
                              spans.back().n_tokens != media.offset))) {
        throw std::invalid_argument(
            format("%d rows of the image should be there, before token %d", media.offset, part.n_past));
    }
}

// a part may begin where its sequence ends, or before: then the rest is forgotten
void target::begin_part(const batch_part & part) {
    if (holds_draft(part.seq_id)) {
        keep(part.seq_id, {}); // it was left open
    }
    const int32_t n_have = n_past(part.seq_id);
    if (part.n_past > n_have && !may_leave_gaps) {
        throw error(format("position %d would leave a gap: the target's memory ends at %d", part.n_past, n_have));
    }
    if (part.n_past < n_have && truncate(part.n_past, part.seq_id) < part.n_past) {
        throw error(format("the target's memory cannot go back from position %d to %d: it ends at %d now, decode from "
                           "there (a sliding window needs swa_full = True to go back, a recurrent state a checkpoint)",
                           n_have, part.n_past, n_past(part.seq_id)));
    }
}

void target::clear_batch() {
    decoded = false;
    batch_count++;
    batch_tokens.clear();
    batch_media = nullptr;
    batch_n_pad = 0;
    batch_pos.clear();
    batch_n_seq.clear();
    batch_seq_ids.clear();
    batch_logits.clear();
    row_idxs.clear();
    row_tokens.clear();
    row_pos.clear();
}

// its sequence ids are to be appended to batch_seq_ids by the caller
void target::add_token(llama_token token, llama_pos pos, bool logits, bool visible) {
    if (visible) {
        row_idxs.push_back(static_cast<int32_t>(batch_tokens.size()));
        row_tokens.push_back(token);
        row_pos.push_back(pos);
    }
    batch_tokens.push_back(token);
    batch_pos.push_back(pos);
    batch_n_seq.push_back(1);
    batch_logits.push_back(logits);
}

void target::add_chain(const batch_part & part) {
    const auto & replay = rounds[part.seq_id].replay();
    llama_pos    pos    = position(part.seq_id, part.n_past) - static_cast<int32_t>(replay.size());
    for (llama_token token : replay) {
        add_token(token, pos++, /*logits =*/false, /*visible =*/false);
    }
    for (llama_token token : part.tokens) {
        add_token(token, pos++, part.logits == part_logits::all, /*visible =*/true);
    }
    batch_logits.back() = part.logits != part_logits::none;
    batch_seq_ids.insert(batch_seq_ids.end(), replay.size() + part.tokens.size(), part.seq_id);
}

void target::add_media(const batch_part & part) {
    const auto n   = part.tokens.size();
    llama_pos  pos = position(part.seq_id, part.n_past);
    for (size_t i = 0; i < n; ++i) {
        add_token(part.tokens[i], part.media.pos.empty() ? pos++ : part.media.pos[i], part.logits == part_logits::all,
                  /*visible =*/true);
    }
    if (!part.media.pos.empty()) {
        batch_pos = part.media.pos; // the first of four dimensions was added, llama.cpp wants all
    }
    batch_logits.back() = part.logits != part_logits::none;
    batch_seq_ids.insert(batch_seq_ids.end(), n, part.seq_id);
    batch_media = &part.media;
}

void target::decode(const std::vector<batch_part> & parts, int32_t n_pad) {
    if (parts.empty()) {
        throw std::invalid_argument("no tokens to decode");
    }
    size_t  n      = 0;
    int32_t n_leaf = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
        n_leaf += check_part(parts[i]);
        for (size_t k = 0; k < i; ++k) {
            if (parts[k].seq_id == parts[i].seq_id) {
                throw std::invalid_argument(format("sequence %d has two parts in one batch", parts[i].seq_id));
            }
        }
        n += parts[i].tokens.size();
    }
    check_fits(n);
    const bool is_media = std::any_of(parts.begin(), parts.end(), [](const auto & p) { return !p.media.embd.empty(); });
    if (is_media && parts.size() > 1) {
        throw std::invalid_argument("a piece of an image is a batch of its own");
    }
    for (const auto & part : parts) {
        begin_part(part);
        if (is_media && !rounds[part.seq_id].replay().empty()) {
            settle();
        }
        n += rounds[part.seq_id].replay().size();
    }
    check_fits(n);
    const auto n_free =
        std::count_if(loans.begin() + n_seq, loans.end(), [](const leaf_loan & loan) { return !loan.busy; });
    if (n_leaf > n_free) {
        throw std::invalid_argument(format("the trees of this batch need %d sequence ids for their leaves, %d are free",
                                           n_leaf, static_cast<int>(n_free)));
    }

    clear_batch();
    for (const auto & part : parts) {
        const bool is_tree = !part.parents.empty();
        if (is_tree || part.is_draft) {
            drafts[part.seq_id] = {
                position(part.seq_id, part.n_past), static_cast<int32_t>(part.tokens.size()), {}, {}
            };
        }
        if (is_tree) {
            add_tree(part);
            continue;
        }
        if (part.is_draft) {
            rounds[part.seq_id].begin(static_cast<int32_t>(part.tokens.size()), drafts[part.seq_id].pos);
        }
        if (is_media) {
            add_media(part);
        } else {
            add_chain(part);
        }
    }
    add_pads(parts, n_pad);
    try {
        run();
    } catch (...) {
        for (const auto & part : parts) {
            if (part.media.offset > 0) {
                truncate(part.n_past - part.media.offset, part.seq_id);
            }
        }
        throw;
    }
    if (is_media) {
        const batch_part & part = parts.front();
        const auto         rows = static_cast<int32_t>(part.tokens.size());
        positions[part.seq_id].append(part.n_past - part.media.offset, part.media.offset, rows,
                                      may_leave_gaps ? part.media.n_pos : part.media.offset + rows);
    }
    auto first = batch_tokens.begin();
    for (const auto & part : parts) {
        const auto last = first + static_cast<std::ptrdiff_t>(rounds[part.seq_id].replay().size() + part.tokens.size());
        rounds[part.seq_id].decoded({ first, last });
        first = last;
    }
    if (parts.size() > 1) {
        forget_lost_snapshots();
    }
}

void target::decode_batch(const std::vector<llama_token> & tokens, const std::vector<llama_pos> & pos,
                          const std::vector<std::vector<llama_seq_id>> & seq_ids, const std::vector<bool> & logits) {
    check_tokens(tokens);
    check_fits(tokens.size());
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
            check_seq(s);
        }
    }
    settle();

    clear_batch();
    for (size_t i = 0; i < n; ++i) {
        add_token(tokens[i], pos[i], logits[i], /*visible =*/true);
        batch_n_seq.back() = static_cast<int32_t>(seq_ids[i].size());
        batch_seq_ids.insert(batch_seq_ids.end(), seq_ids[i].begin(), seq_ids[i].end());
    }
    run();
    for (auto & round : rounds) {
        round.forget_snapshots();
    }
}

static const char * decode_problem(int32_t ret) {
    switch (ret) {
        case 2: return "aborted";
        case -1: return "invalid batch";
        case -2: return "no memory";
        default: return "fatal error";
    }
}

// whether rows of a batch see only those before them
struct causal_scope {
    causal_scope(llama_context * ctx, bool causal) : ctx(causal ? nullptr : ctx) {
        if (this->ctx) {
            llama_set_causal_attn(ctx, false);
        }
    }
    ~causal_scope() {
        if (ctx) {
            llama_set_causal_attn(ctx, true);
        }
    }

    llama_context * ctx;
};

llama_batch target::as_batch() {
    llama_batch batch = {};
    batch.n_tokens    = static_cast<int32_t>(batch_tokens.size());
    // llama.cpp only reads
    batch.embd        = batch_media ? const_cast<float *>(batch_media->embd.data()) : nullptr;
    batch.token       = batch_media ? nullptr : batch_tokens.data();
    batch.pos         = batch_pos.data();
    batch.n_seq_id    = batch_n_seq.data();
    batch.seq_id      = batch_seq.data();
    batch.logits      = batch_logits.data();
    return batch;
}

int32_t target::decode_rows() {
    const llama_batch batch = as_batch();
    if (tap_ptr) {
        tap_ptr->begin(batch);
    }
    return llama_decode(ctx, batch);
}

void target::run() {
    decoded = false;
    if (tap_ptr && tap_ptr->needs_all_outputs()) {
        std::fill(batch_logits.begin(), batch_logits.end(), true);
    }
    batch_seq.clear();
    for (size_t i = 0, n_seq = 0; i < batch_tokens.size(); n_seq += batch_n_seq[i++]) {
        batch_seq.push_back(batch_seq_ids.data() + n_seq);
    }

    guard_windows();
    const int64_t t_start = ggml_time_us();
    try {
        argmax_used = argmax_.is_attached();
        if (argmax_used) {
            check_outputs();
        }
        const abort_guard  guard(abort_guard::outside_kernels);
        const causal_scope causal(ctx, !batch_media || batch_media->causal);
        int32_t            ret = decode_rows();
        if (ret == 1 && batch_n_pad > 0) {
            drop_pads();
            ret = decode_rows();
        }
        if (ret == 1) {
            throw context_full_error(
                format("no room for %zu tokens in the context (n_ctx = %d): shorten the text or enlarge n_ctx",
                       batch_tokens.size(), n_ctx));
        }
        if (ret != 0) {
            throw error(format("llama_decode failed with %d (%s)", ret, decode_problem(ret)));
        }
        if (tap_ptr) {
            tap_ptr->end();
            if (row_idxs.size() < batch_tokens.size()) {
                tap_ptr->select(row_idxs);
            }
        } else {
            llama_synchronize(ctx);
        }
    } catch (const std::exception & e) {
        t_decode += ggml_time_us() - t_start;
        if (tap_ptr) {
            tap_ptr->abort();
        }
        take_back_batch();
        if (dynamic_cast<const error *>(&e) || dynamic_cast<const std::bad_alloc *>(&e)) {
            throw;
        }
        throw error(format("llama_decode failed: %s", e.what()));
    }
    decoded = true;
    drop_pads();
    t_decode += ggml_time_us() - t_start;
}

// after a failure: take back what some ubatches may have added. An open round is aborted; what cannot go back is
// forgotten altogether
void target::take_back_batch() {
    std::map<llama_seq_id, llama_pos> first;
    for (size_t i = 0; i < batch_tokens.size(); ++i) {
        for (int32_t s = 0; s < batch_n_seq[i]; ++s) {
            const auto it = first.emplace(batch_seq[i][s], batch_pos[i]).first;
            it->second    = std::min(it->second, batch_pos[i]);
        }
    }
    for (const auto & [seq, pos] : first) {
        rounds[seq].failed(pos);
        sync_positions(seq);
        drafts[seq].n_tokens = 0;
        loans[seq].busy      = false;
    }
}

void target::set_device_argmax(int32_t n_outputs) {
    check_open();
    if (n_outputs > 0) {
        argmax_.attach(ctx, n_outputs);
    } else {
        argmax_.detach(ctx);
    }
}

// llama.cpp would call the batch invalid
void target::check_outputs() const {
    std::map<llama_seq_id, int32_t> n_outputs;
    for (size_t i = 0, j = 0; i < batch_tokens.size(); ++i) {
        for (int32_t s = 0; s < batch_n_seq[i]; ++s, ++j) {
            if (batch_logits[i] && ++n_outputs[batch_seq_ids[j]] > argmax_.n_outputs_max()) {
                throw error(format("sequence %d has more rows with logits than the %d that device_argmax was set for",
                                   batch_seq_ids[j], argmax_.n_outputs_max()));
            }
        }
    }
}

void target::close() {
    if (ctx) {
        argmax_.detach(ctx);
        ctx = nullptr;
    }
}

} // namespace eagle3
