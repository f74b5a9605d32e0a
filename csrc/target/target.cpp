#include "target/target.h"

#include "error.h"
#include "load_guard.h"
#include "target/logits.h"

#include "ggml.h"

#include <algorithm>
#include <map>
#include <new>
#include <set>

namespace eagle3 {

static llama_context * checked(llama_context * ctx, const llama_model * model) {
    if (!ctx || !model) {
        throw std::invalid_argument("context and model must not be null");
    }
    if (llama_get_model(ctx) != model) {
        throw std::invalid_argument("the context belongs to another model");
    }
    if (llama_model_has_encoder(model) || !llama_model_has_decoder(model)) {
        throw error("models with an encoder cannot be used: decoder-only models can");
    }
    return ctx;
}

target::target(llama_context * ctx, const llama_model * model, feature_tap * tap, int32_t n_seq, int32_t n_guards) :
    ctx_(checked(ctx, model)), tap_(tap), memory_(ctx, n_seq, n_guards),
    n_vocab_(llama_vocab_n_tokens(llama_model_get_vocab(model))), n_batch_(static_cast<int32_t>(llama_n_batch(ctx))),
    n_embd_(llama_model_n_embd_inp(model)), n_ubatch_(static_cast<int32_t>(llama_n_ubatch(ctx))), sampler_(n_vocab_),
    is_remote_(eagle3::logits_are_remote(model)) {
    if (tap) {
        tap->attach(ctx);
    }
}

void target::check_tokens(const std::vector<llama_token> & tokens) const {
    memory_.check_open();
    if (llama_model_n_layer(llama_get_model(ctx_)) == 0) {
        throw error("the model was loaded with vocab_only: without weights nothing can be evaluated");
    }
    if (tokens.empty()) {
        throw std::invalid_argument("no tokens to decode");
    }
    for (llama_token id : tokens) {
        if (id < 0 || id >= n_vocab_) {
            throw std::invalid_argument(format("token %d is not in the target's vocabulary of %d", id, n_vocab_));
        }
    }
}

void target::check_fits(size_t n_tokens) const {
    if (n_tokens > static_cast<size_t>(n_batch_)) {
        throw std::invalid_argument(format("%zu tokens do not fit into one batch of n_batch = %d", n_tokens, n_batch_));
    }
}

// Checks what does not depend on the memory, and returns how many ids for leaves the part needs.
int32_t target::check_part(const batch_part & part) const {
    memory_.check_seq(part.seq_id);
    check_tokens(part.tokens);
    if (part.n_past < 0) {
        throw std::invalid_argument(format("n_past must not be negative, not %d", part.n_past));
    }
    const int32_t n = static_cast<int32_t>(part.tokens.size());
    if (n > memory_.n_ctx_seq() - part.n_past) {
        throw context_full_error(format("%d tokens after %d do not fit into the context of n_ctx = %d", n, part.n_past,
                                        memory_.n_ctx_seq()));
    }
    if (!part.media.embd.empty()) {
        check_media(part);
        return 0;
    }
    if (part.parents.empty()) {
        return 0;
    }
    const int32_t n_leaf = count_leaves(part);
    if (n_leaf > memory_.n_leaves_max()) {
        throw std::invalid_argument(
            format("the tree has %d leaves, the target's context allows %d%s", n_leaf, memory_.n_leaves_max(),
                   memory_.kind() == rollback_kind::trim ? ": load it with a larger draft_tree_tokens"
                                                         : ", for it keeps a recurrent state: draft chains"));
    }
    return n_leaf - 1;
}

void target::check_media(const batch_part & part) const {
    const media_piece & media = part.media;
    const auto          n     = static_cast<int32_t>(part.tokens.size());
    if (media.embd.size() != static_cast<size_t>(n) * n_embd_) {
        throw std::invalid_argument(format("expected %d rows of %d values, found %zu values: the projector belongs to "
                                           "another model",
                                           n, n_embd_, media.embd.size()));
    }
    if (media.pos.size() != (memory_.has_sections() ? static_cast<size_t>(n) * 4 : 0)) {
        throw std::invalid_argument(format("expected %d positions for each of %d rows, found %zu in all",
                                           memory_.has_sections() ? 4 : 0, n, media.pos.size()));
    }
    if (part.is_draft || !part.parents.empty()) {
        throw std::invalid_argument("rows of an image cannot be a draft");
    }
    if (!media.causal && n > n_ubatch_) {
        throw error(format("an image of %d rows does not fit into n_ubatch = %d, and its rows see each other: load the "
                           "model with n_ubatch and n_batch of %d or more",
                           n, n_ubatch_, n));
    }
    const auto & spans = memory_.spans(part.seq_id);
    if (media.offset < 0 || media.offset > part.n_past ||
        (media.offset > 0 && (spans.empty() || spans.back().first + media.offset != part.n_past ||
                              spans.back().n_tokens != media.offset))) {
        throw std::invalid_argument(
            format("%d rows of the image should be there, before token %d", media.offset, part.n_past));
    }
}

// Removes the tokens of a sequence after the beginning of its part.
void target::begin_part(const batch_part & part) {
    if (memory_.has_draft(part.seq_id)) {
        memory_.accept(part.seq_id, {}); // the last draft was left open
    }
    const int32_t n_have = memory_.n_past(part.seq_id);
    if (part.n_past > n_have && !memory_.has_sections()) {
        throw error(format("position %d would leave a gap: the target's memory ends at %d", part.n_past, n_have));
    }
    if (part.n_past < n_have && memory_.truncate(part.n_past, part.seq_id) < part.n_past) {
        throw error(format("the target's memory cannot go back from position %d to %d: it ends at %d now, decode from "
                           "there (a sliding window needs swa_full = True to go back, a recurrent state a checkpoint)",
                           n_have, part.n_past, memory_.n_past(part.seq_id)));
    }
}

void target::begin_batch() {
    is_decoded_ = false;
    n_batches_++;
    batch_.clear();
}

void target::add_tree(const batch_part & part) {
    const auto nodes = memory_.open_tree(part.seq_id, part.n_past, part.parents);
    for (size_t i = 0; i < nodes.size(); ++i) {
        batch_.add(part.tokens[i], nodes[i].pos, nodes[i].seq_ids, nodes[i].n_seq_ids,
                   part.logits != part_logits::none);
    }
}

void target::add_chain(const batch_part & part, bool has_snapshots) {
    if (part.is_draft) {
        memory_.open_chain(part.seq_id, part.n_past, static_cast<int32_t>(part.tokens.size()), has_snapshots);
    }
    const auto & replay = memory_.rollback(part.seq_id).replay();
    llama_pos    pos    = memory_.position(part.seq_id, part.n_past) - static_cast<int32_t>(replay.size());
    for (llama_token token : replay) {
        batch_.add(token, pos++, &part.seq_id, 1, /*logits =*/false, /*is_numbered =*/false);
    }
    for (llama_token token : part.tokens) {
        batch_.add(token, pos++, &part.seq_id, 1, part.logits == part_logits::all);
    }
    if (part.logits != part_logits::none) {
        batch_.request_logits();
    }
}

void target::add_media(const batch_part & part) {
    const llama_pos pos = memory_.position(part.seq_id, part.n_past);
    for (size_t i = 0; i < part.tokens.size(); ++i) {
        batch_.add(part.tokens[i], part.media.pos.empty() ? pos + static_cast<llama_pos>(i) : part.media.pos[i],
                   &part.seq_id, 1, part.logits == part_logits::all);
    }
    batch_.set_media(part.media);
    if (part.logits != part_logits::none) {
        batch_.request_logits();
    }
}

void target::decode(const std::vector<batch_part> & parts) {
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
        if (is_media && !memory_.rollback(part.seq_id).replay().empty()) {
            settle();
        }
        n += memory_.rollback(part.seq_id).replay().size();
    }
    check_fits(n);
    if (n_leaf > memory_.n_leaves_free()) {
        throw std::invalid_argument(format("the trees of this batch need %d sequence ids for their leaves, %d are free",
                                           n_leaf, memory_.n_leaves_free()));
    }
    const std::vector<bool> lost = memory_.snapshots_lost(parts);
    begin_batch();
    for (const auto & part : parts) {
        if (is_media) {
            add_media(part);
        } else if (!part.parents.empty()) {
            add_tree(part);
        } else {
            add_chain(part, lost.empty() || !lost[static_cast<size_t>(part.seq_id)]);
        }
    }
    try {
        run();
    } catch (...) {
        for (const auto & part : parts) {
            if (part.media.offset > 0) {
                memory_.truncate(part.n_past - part.media.offset, part.seq_id);
            }
        }
        throw;
    }
    if (is_media) {
        const batch_part & part = parts.front();
        memory_.add_media(part.seq_id, part.n_past, static_cast<int32_t>(part.tokens.size()), part.media);
    }
    auto first = batch_.all_tokens().begin();
    for (const auto & part : parts) {
        seq_rollback & rollback = memory_.rollback(part.seq_id);
        const auto     last     = first + static_cast<std::ptrdiff_t>(rollback.replay().size() + part.tokens.size());
        rollback.decoded({ first, last });
        first = last;
    }
    memory_.drop_snapshots(lost);
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
        if (pos[i] >= memory_.n_ctx_seq()) {
            throw context_full_error(format("position %d of token %zu is outside the context of n_ctx = %d", pos[i], i,
                                            memory_.n_ctx_seq()));
        }
        if (seq_ids[i].empty() ||
            std::set<llama_seq_id>(seq_ids[i].begin(), seq_ids[i].end()).size() != seq_ids[i].size()) {
            throw std::invalid_argument(format("token %zu needs one or more different sequence ids", i));
        }
        for (llama_seq_id s : seq_ids[i]) {
            memory_.check_seq(s);
        }
    }
    settle();

    begin_batch();
    for (size_t i = 0; i < n; ++i) {
        batch_.add(tokens[i], pos[i], seq_ids[i].data(), static_cast<int32_t>(seq_ids[i].size()), logits[i]);
    }
    run();
    memory_.drop_snapshots();
}

static const char * decode_problem(int32_t ret) {
    switch (ret) {
        case 2: return "aborted";
        case -1: return "invalid batch";
        case -2: return "no memory";
        default: return "fatal error";
    }
}

// Sets whether rows of a batch see only those before them.
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

int32_t target::decode_rows() {
    const llama_batch batch = batch_.to_llama();
    if (tap_) {
        tap_->begin(batch);
    }
    return llama_decode(ctx_, batch);
}

void target::run() {
    if (tap_ && tap_->needs_all_outputs()) {
        batch_.request_all_logits();
    }
    memory_.guard_windows();
    const int64_t t_start = ggml_time_us();
    try {
        argmax_used_ = argmax_.is_attached();
        if (argmax_used_) {
            check_outputs();
        }
        const abort_guard  guard(abort_guard::outside_kernels);
        const causal_scope causal(ctx_, batch_.is_causal());
        const int32_t      ret = decode_rows();
        if (ret == 1) {
            throw context_full_error(
                format("no room for %d tokens in the context (n_ctx = %d): shorten the text or enlarge n_ctx",
                       batch_.n_tokens(), memory_.n_ctx_seq()));
        }
        if (ret != 0) {
            throw error(format("llama_decode failed with %d (%s)", ret, decode_problem(ret)));
        }
        if (tap_) {
            tap_->end();
            if (batch_.row_idxs().size() < static_cast<size_t>(batch_.n_tokens())) {
                tap_->select(batch_.row_idxs());
            }
        } else {
            llama_synchronize(ctx_);
        }
    } catch (const std::exception & e) {
        t_decode_us_ += ggml_time_us() - t_start;
        if (tap_) {
            tap_->abort();
        }
        for (const auto & [seq_id, extent] : batch_.extents()) {
            memory_.take_back(seq_id, extent.first);
        }
        if (dynamic_cast<const error *>(&e) || dynamic_cast<const std::bad_alloc *>(&e)) {
            throw;
        }
        throw error(format("llama_decode failed: %s", e.what()));
    }
    is_decoded_ = true;
    t_decode_us_ += ggml_time_us() - t_start;
}

void target::settle() {
    memory_.check_open();
    for (llama_seq_id s = 0; s < memory_.n_seqs(); ++s) {
        memory_.release_leaves(s);
        const std::vector<llama_token> tokens = memory_.rollback(s).replay();
        if (!tokens.empty()) {
            const int32_t n_past = memory_.truncate(memory_.n_past(s) - static_cast<int32_t>(tokens.size()), s);
            decode({ { s, n_past, tokens } });
        }
    }
}

void target::set_device_argmax(int32_t n_outputs) {
    memory_.check_open();
    if (n_outputs > 0) {
        argmax_.attach(ctx_, n_outputs);
    } else {
        argmax_.detach(ctx_);
    }
}

// Throws with the reason for which llama.cpp would only call the batch invalid.
void target::check_outputs() const {
    for (const auto & [seq_id, extent] : batch_.extents()) {
        if (extent.n_outputs > argmax_.n_outputs_max()) {
            throw error(format("sequence %d has more rows with logits than the %d that device_argmax was set for",
                               seq_id, argmax_.n_outputs_max()));
        }
    }
}

void target::check_row(int32_t row) const {
    memory_.check_open();
    if (!is_decoded_) {
        throw error("no logits: nothing was decoded, or the last decode failed");
    }
    if (row < 0 || row >= static_cast<int32_t>(batch_.row_idxs().size())) {
        throw std::invalid_argument(
            format("row %d is out of range: the last batch had %zu tokens", row, batch_.row_idxs().size()));
    }
    if (!batch_.has_logits(row)) {
        throw std::invalid_argument(format("row %d has no logits: they were not asked for", row));
    }
}

const float * target::logits(int32_t row) const {
    if (row == -1) {
        memory_.check_open();
    } else {
        check_row(row);
    }
    if (argmax_used_) {
        throw error(format("the logits of row %d are on the target's device, which took their argmax: decode again "
                           "without device_argmax",
                           row));
    }
    const float * res = llama_get_logits_ith(ctx_, row == -1 ? -1 : batch_.row_idxs()[row]);
    if (!res) {
        throw error(format("llama.cpp has no logits for row %d", row));
    }
    return res;
}

llama_token target::argmax(int32_t row) const {
    llama_token token = -1;
    if (argmax_used_) {
        check_row(row);
        token = device_argmax::get(ctx_, batch_.row_idxs()[row]);
    } else {
        token = eagle3::argmax(logits(row), n_vocab_);
    }
    if (token < 0 || token >= n_vocab_) {
        throw_no_numbers();
    }
    return token;
}

void target::close() {
    if (ctx_) {
        argmax_.detach(ctx_);
        memory_.close();
        ctx_ = nullptr;
    }
}

} // namespace eagle3
