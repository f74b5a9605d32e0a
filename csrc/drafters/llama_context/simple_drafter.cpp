#include "drafters/llama_context/simple_drafter.h"

#include "drafter/state_header.h"
#include "drafter/time_scope.h"
#include "error.h"
#include "llama_ext.h"
#include "lm_head.h"
#include "target/graph_check.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace eagle3 {

namespace {

constexpr uint32_t state_magic = 0x324d534c; // "LSM2"

struct state_header {
    uint32_t magic;
    int32_t  pos_start;
    int32_t  n_tokens;
    int32_t  n_skipped;
    int32_t  n_written;
    int32_t  seeded; // -1 = not
    uint64_t fingerprint;
    uint64_t size; // of the whole state
};

bool has_states(const llama_model * model) {
    return llama_model_is_recurrent(model) || llama_model_is_hybrid(model);
}

} // namespace

simple_drafter::simple_drafter(llama_context * ctx, llama_model * model, const std::string & path,
                               const simple_params & params) :
    context_drafter(ctx, model, path, /*n_embd =*/0, params.n_outputs_max,
                    eagle3::has_states(model) ? memory_kind::states : memory_kind::cells),
    limits_(params.n_vocab_tgt, params.n_ctx, params.n_seq_max),
    n_pos_max_(checked_limits(ctx, params.n_vocab_tgt, params.n_pos_max, params.n_seq_max).n_ctx()),
    texts_(static_cast<size_t>(params.n_seq_max)), lm_head_(find_lm_head(model)),
    has_windows_(llama_model_n_swa(model) > 0) {
    check_outputs(params.n_outputs_max);
    if (lm_head_ == nullptr) {
        throw model_file_error(format("'%s': expected a model with an output matrix, found none", path.c_str()));
    }
    std::vector<const ggml_tensor *> tensors;
    for (const auto & [name, tensor] : llama_internal_get_tensor_map(model)) {
        tensors.push_back(tensor);
        if (tensor == lm_head_ || name.find("token_embd") == std::string::npos) {
            n_bytes_read_ += ggml_nbytes(tensor);
        }
    }
    fingerprint_ = draft_context::fingerprint_of(tensors);
    check_graphs(ctx, std::min(params.n_outputs_max, n_batch()));
}

const simple_drafter::text & simple_drafter::text_of(llama_seq_id seq_id) const {
    limits_.check(seq_id);
    return texts_[seq_id];
}

simple_drafter::text & simple_drafter::text_of(llama_seq_id seq_id) {
    limits_.check(seq_id);
    return texts_[seq_id];
}

// tokens of the text

void simple_drafter::process(const float * /*rows*/, const llama_token * tokens, int32_t n_tokens, int32_t n_past,
                             llama_seq_id seq_id, const int32_t * /*row_ids*/, bool may_wait) {
    time_scope t(stats.t_process_us);
    text &     text = text_of(seq_id);
    limits_.check_process(tokens, n_tokens, n_past, text.n_past());
    if (n_tokens <= 0) {
        return;
    }
    leave();
    read_text(seq_id, tokens, n_tokens);
    if (text.seeded == tokens[0]) {
        text.seeded.reset();
        text.n_written++;
    }
    unseed(seq_id);
    text.tokens.insert(text.tokens.end(), tokens, tokens + n_tokens);
    // a prompt is written at once; a few tokens wait, since writing many together is cheaper. Tokens that were lost
    // when the text went back wait for the next draft: they are many, and would delay this step
    const bool waits = may_wait || text.n_unwritten() - n_tokens > std::max(n_wait_max, n_tokens);
    if (!waits && (n_tokens > draft_limits::n_catch_up_max || text.n_unwritten() > n_wait_max)) {
        flush(seq_id);
    }
}

void simple_drafter::flush(llama_seq_id seq_id) {
    fit_cells(seq_id);
    const text & text   = text_of(seq_id);
    const auto   n_room = std::max(0, n_pos_max_ - text.end());
    write_waiting(std::min(text.n_unwritten(), n_room), [&](int32_t n) { write(seq_id, n); });
}

// Writes the first n_tokens that are not in the cache.
void simple_drafter::write(llama_seq_id seq_id, int32_t n_tokens) {
    text & text = text_of(seq_id);
    clear_batch();
    for (int32_t i = 0; i < n_tokens; ++i) {
        add_row(seq_id, own(text.read(text.n_written + i)), text.end() + i, nullptr, false);
    }
    compute();
    text.n_written += n_tokens;
}

// drafting

void simple_drafter::prepare(llama_seq_id seq_id) {
    unseed(seq_id);
    skip(seq_id);
}

// Leaves out the middle of a text of which too much waits: it costs acceptance alone.
void simple_drafter::skip(llama_seq_id seq_id) {
    text & text = text_of(seq_id);
    if (text.n_unwritten() > n_sinks + n_window) {
        context().clear(seq_id);
        text.forget();
        text.n_skipped = text.n_tokens() - n_sinks - n_window;
    }
}

void simple_drafter::add_waiting(llama_seq_id seq_id, llama_token id_last) {
    const text & text = text_of(seq_id);
    for (int32_t i = 0; i < text.n_unwritten(); ++i) {
        add_row(seq_id, own(text.read(text.n_written + i)), text.end() + i, nullptr, false);
    }
    add_row(seq_id, own(id_last), text.n_past(), nullptr, true);
}

void simple_drafter::on_caught_up(llama_seq_id seq_id, llama_token id_last) {
    text & text = text_of(seq_id);
    text.n_written += text.n_unwritten();
    text.seeded = id_last;
}

void simple_drafter::add_node(llama_seq_id id, llama_token token, int32_t pos, int32_t /*kept*/) {
    add_row(id, own(token), pos, nullptr, true);
}

void simple_drafter::on_failed(llama_seq_id seq_id) {
    text & text = text_of(seq_id);
    if (has_states()) {
        context().clear(seq_id);
        text.forget();
        text.seeded.reset();
    }
    trim(seq_id);
}

// Removes the cell of the token that was drafted after, as another one may follow.
void simple_drafter::unseed(llama_seq_id seq_id) {
    text_of(seq_id).seeded.reset();
    fit_cells(seq_id);
}

// Makes the cells end where the text ends; if they cannot go back to that, all are written again.
void simple_drafter::fit_cells(llama_seq_id seq_id) {
    text & text = text_of(seq_id);
    if (text.n_written < text.n_loaded || !trim(seq_id)) {
        context().clear(seq_id);
        text.forget();
    }
}

// going back

int32_t simple_drafter::truncate(int32_t n_past, llama_seq_id seq_id, bool /*same_next*/) {
    text & text = text_of(seq_id);
    leave();
    n_past = std::max(n_past, 0);
    if (n_past < text.n_past()) {
        text.pos_start = std::min(text.pos_start, n_past);
        text.tokens.resize(n_past - text.pos_start);
        if (!text.is_whole_window(text.n_tokens())) {
            text.forget();
        }
        text.n_written = std::min(text.n_written, text.n_tokens() - text.n_skipped);
        unseed(seq_id);
    }
    return text.n_past();
}

void simple_drafter::restart(int32_t n_past, llama_seq_id seq_id) {
    limits_.check_restart(n_past, seq_id);
    leave();
    text_of(seq_id)           = text();
    text_of(seq_id).pos_start = n_past;
    context().clear(seq_id);
    restart_text(seq_id);
}

int32_t simple_drafter::copy(llama_seq_id src, llama_seq_id dst, int32_t n_past, bool /*same_next*/) {
    limits_.check_copy(src, dst, n_past, text_of(src).n_past());
    restart(0, dst);
    const text & from = text_of(src);
    text         copy;
    copy.pos_start = std::min(from.pos_start, n_past);
    copy.tokens.assign(from.tokens.begin(), from.tokens.begin() + (n_past - copy.pos_start));
    const int32_t n =
        from.is_whole_window(copy.n_tokens()) ? std::min(from.n_written, copy.n_tokens() - from.n_skipped) : 0;
    // a state, and what is copied as one, can only be copied as a whole
    const bool is_saved = has_windows_ && !context().shares_cells();
    const bool is_whole = n == (has_states() ? from.end() - from.begin() : from.n_written);
    if (n > 0 && n >= from.n_loaded && (is_whole || !(has_states() || is_saved))) {
        copy.n_skipped = from.n_skipped;
        copy.n_written = n;
        copy.n_loaded  = is_saved ? n : from.n_loaded;
        context().copy(src, dst, copy.end());
    }
    read_text(dst, copy.tokens.data(), copy.n_tokens());
    text_of(dst) = std::move(copy);
    return n_past;
}

std::vector<uint8_t> simple_drafter::state_get(llama_seq_id seq_id) {
    const text & text = text_of(seq_id);
    leave();
    std::vector<uint8_t> cells;
    if (text.end() > text.begin()) {
        cells = context().save(seq_id);
    }
    const size_t       n_bytes = text.tokens.size() * sizeof(llama_token);
    const state_header header  = { state_magic,     text.pos_start,
                                   text.n_tokens(), text.n_skipped,
                                   text.n_written,  text.seeded.value_or(-1),
                                   fingerprint_,    sizeof(state_header) + n_bytes + cells.size() };

    std::vector<uint8_t> state(header.size);
    memcpy(state.data(), &header, sizeof(header));
    uint8_t * dst =
        std::copy_n(reinterpret_cast<const uint8_t *>(text.tokens.data()), n_bytes, state.data() + sizeof(header));
    std::copy(cells.begin(), cells.end(), dst);
    return state;
}

void simple_drafter::state_set(const std::vector<uint8_t> & state, llama_seq_id seq_id) {
    limits_.check(seq_id);
    const auto header = read_header<state_header>(state, state_magic, "a small model that drafts");
    if (header.fingerprint != fingerprint_) {
        throw incompatible_draft_error(
            format("the saved state belongs to another small model than '%s'", path().c_str()));
    }
    const bool   in_range = header.pos_start >= 0 && header.pos_start <= n_ctx() && header.n_tokens >= 0 &&
                            header.n_tokens <= n_ctx() - header.pos_start;
    const size_t n_bytes  = in_range ? static_cast<size_t>(header.n_tokens) * sizeof(llama_token) : 0;
    if (!in_range || state.size() - sizeof(header) < n_bytes) {
        throw std::invalid_argument(format("the saved state has %d + %d positions, the draft's context holds %d",
                                           header.pos_start, header.n_tokens, n_ctx()));
    }
    text loaded;
    loaded.pos_start = header.pos_start;
    loaded.n_skipped = header.n_skipped;
    loaded.n_written = header.n_written;
    loaded.n_loaded  = has_windows_ ? header.n_written : 0;
    loaded.tokens.resize(header.n_tokens);
    std::copy_n(state.data() + sizeof(header), n_bytes, reinterpret_cast<uint8_t *>(loaded.tokens.data()));
    if (header.seeded >= 0) {
        loaded.seeded = header.seeded;
    }
    const uint8_t * cells   = state.data() + sizeof(header) + n_bytes;
    const size_t    n_cells = state.size() - sizeof(header) - n_bytes;
    const bool      is_known =
        std::all_of(loaded.tokens.begin(), loaded.tokens.end(), [this](llama_token t) { return limits_.is_token(t); });
    const bool is_window = header.n_skipped == 0 || (header.n_skipped > 0 && header.n_skipped <= header.n_tokens &&
                                                     loaded.is_whole_window(header.n_tokens));
    if (!is_known || !is_window || header.n_written < 0 || loaded.n_unwritten() < 0 || header.seeded < -1 ||
        (loaded.seeded &&
         (!limits_.is_token(*loaded.seeded) || loaded.n_unwritten() > 0 || loaded.n_past() >= n_ctx())) ||
        (loaded.end() > loaded.begin()) != (n_cells > 0)) {
        throw std::invalid_argument("the saved state of the draft is damaged: its tokens are not what they can be");
    }
    restart(0, seq_id);
    if (n_cells > 0) {
        context().load(cells, n_cells, seq_id, loaded.begin(), loaded.end());
    }
    read_text(seq_id, loaded.tokens.data(), loaded.n_tokens());
    text_of(seq_id) = std::move(loaded);
}

} // namespace eagle3
