#include "draft/draft_memory.h"

#include "error.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace eagle3 {

namespace {

constexpr uint32_t state_magic = 0x35454c45; // "ELE5"

struct state_header {
    uint32_t magic;
    int32_t  pos_start;
    int32_t  pos_first;
    int32_t  n_tokens;
    int32_t  seeded; // -1 = not
    int32_t  n_rope; // numbers of rope_positions
    uint64_t fingerprint;
    uint64_t size; // of the whole state
    int32_t  type_k, type_v;
};

} // namespace

draft_memory::draft_memory(const head_hparams & hparams, const head_weights & weights, int32_t n_vocab, int32_t n_ctx,
                           int32_t n_seq_max, ggml_type type_k, ggml_type type_v, const device & dev,
                           std::function<void()> on_change) :
    hparams_(hparams), weights_(weights), n_vocab_(n_vocab), on_change_(std::move(on_change)),
    cache_(hparams, n_ctx, n_seq_max, type_k, type_v, dev),
    sequences_(static_cast<size_t>(n_seq_max), draft_sequence(hparams.n_embd_feat())),
    positions_(static_cast<size_t>(n_seq_max)) {}

const draft_sequence & draft_memory::sequence(llama_seq_id seq_id) const {
    if (seq_id < 0 || seq_id >= n_seq_max()) {
        throw std::invalid_argument(format("sequence %d: the draft was made for %d sequences, expected 0..%d", seq_id,
                                           n_seq_max(), n_seq_max() - 1));
    }
    return sequences_[seq_id];
}

draft_sequence & draft_memory::sequence(llama_seq_id seq_id) {
    return const_cast<draft_sequence &>(static_cast<const draft_memory *>(this)->sequence(seq_id));
}

void draft_memory::check_token(const char * what, llama_token token) const {
    if (token < 0 || token >= n_vocab_) {
        throw std::invalid_argument(format("%s %d: expected an id in 0..%d", what, token, n_vocab_ - 1));
    }
}

int32_t draft_memory::truncate(int32_t n_past, llama_seq_id seq_id, bool same_next) {
    draft_sequence & seq = sequence(seq_id);
    on_change_();
    n_past = seq.truncate(n_past, same_next);
    positions_[seq_id].cut(n_past);
    if (seq.n_slots() == seq.pos_start()) {
        cache_.release(seq_id);
    }
    return n_past;
}

int32_t draft_memory::copy(llama_seq_id src, llama_seq_id dst, int32_t n_past, bool same_next) {
    const draft_sequence & from = sequence(src);
    draft_sequence &       to   = sequence(dst);
    if (src == dst) {
        throw std::invalid_argument(format("sequence %d cannot be copied to itself", src));
    }
    if (n_past < 0 || n_past > from.n_past()) {
        throw std::invalid_argument(
            format("expected a position of sequence %d, in 0..%d, found %d", src, from.n_past(), n_past));
    }
    restart(0, dst); // a change
    draft_sequence prefix = from.prefix(n_past, same_next);
    const int32_t  n      = prefix.n_slots() - prefix.pos_start();
    if (n > 0) {
        request(dst, prefix.n_slots());
        provide();
        cache_.copy(src, dst, prefix.pos_start(), n);
    }
    to              = std::move(prefix);
    positions_[dst] = positions_[src];
    positions_[dst].cut(to.n_past());
    return to.n_past();
}

void draft_memory::restart(int32_t n_past, llama_seq_id seq_id) {
    draft_sequence & seq = sequence(seq_id);
    if (n_past < 0 || n_past > n_ctx()) {
        throw std::invalid_argument(format("expected a position in 0..%d, found %d", n_ctx(), n_past));
    }
    on_change_();
    seq.restart(n_past);
    positions_[seq_id].cut(0);
    cache_.release(seq_id);
}

void draft_memory::add_image(int32_t first, int32_t n_pos, const std::vector<int32_t> & pos, llama_seq_id seq_id) {
    if (first != sequence(seq_id).n_past()) {
        throw error(
            format("the draft expects rows from position %d on, got an image at %d", sequence(seq_id).n_past(), first));
    }
    if (pos.empty() || pos.size() % rope_positions::n_sections != 0) {
        throw std::invalid_argument(format("expected %d positions for each row of an image, found %zu in all",
                                           rope_positions::n_sections, pos.size()));
    }
    positions_[seq_id].add(first, n_pos, pos);
}

std::vector<uint8_t> draft_memory::state_get(llama_seq_id seq_id) const {
    const draft_sequence & seq     = sequence(seq_id);
    const int32_t          n_slots = seq.n_slots() - seq.pos_start();
    const size_t           n_rows  = seq.n_rows();
    const size_t           n_row   = hparams_.n_embd_feat() * sizeof(float);
    const auto             rope    = positions_[seq_id].save();
    const size_t size = sizeof(state_header) + n_rows * (n_row + sizeof(llama_token)) + rope.size() * sizeof(int32_t) +
                        cache_.state_size(n_slots);

    const state_header header = { state_magic,
                                  seq.pos_start(),
                                  seq.pos_first(),
                                  seq.n_rows(),
                                  seq.seeded().value_or(-1),
                                  static_cast<int32_t>(rope.size()),
                                  weights_.fingerprint(),
                                  size,
                                  cache_.k(0)->type,
                                  cache_.v(0)->type };

    std::vector<uint8_t> state(size);
    uint8_t *            dst = state.data();
    memcpy(dst, &header, sizeof(header));
    dst += sizeof(header);
    // not memcpy: without rows there is nothing to copy from
    dst = std::copy_n(reinterpret_cast<const uint8_t *>(seq.rows()), n_rows * n_row, dst);
    dst = std::copy_n(reinterpret_cast<const uint8_t *>(seq.tokens()), n_rows * sizeof(llama_token), dst);
    dst = std::copy_n(reinterpret_cast<const uint8_t *>(rope.data()), rope.size() * sizeof(int32_t), dst);
    cache_.state_get(seq_id, seq.pos_start(), n_slots, dst);
    return state;
}

void draft_memory::state_set(const std::vector<uint8_t> & state, llama_seq_id seq_id) {
    draft_sequence & seq    = sequence(seq_id);
    state_header     header = {};
    if (state.size() < sizeof(header)) {
        throw std::invalid_argument("not a state of an EAGLE-3 draft: too short");
    }
    memcpy(&header, state.data(), sizeof(header));
    if (header.magic != state_magic || header.size != state.size()) {
        throw std::invalid_argument("not a state of an EAGLE-3 draft, or truncated");
    }
    if (header.fingerprint != weights_.fingerprint() || header.type_k != cache_.k(0)->type ||
        header.type_v != cache_.v(0)->type) {
        throw incompatible_draft_error(
            format("the saved state belongs to another head or cache type than '%s'", hparams_.path.c_str()));
    }
    const size_t  n_rows  = header.n_tokens;
    const size_t  n_feat  = hparams_.n_embd_feat();
    const bool    fits    = header.pos_start >= 0 && header.pos_first >= header.pos_start && header.n_tokens >= 0 &&
                            header.pos_first <= n_ctx() && header.n_tokens <= n_ctx() - header.pos_first;
    const int32_t n_slots = fits ? header.pos_first - header.pos_start + (header.seeded >= 0 ? 1 : 0) : 0;
    const size_t  n_rope  = header.n_rope >= 0 ? header.n_rope : state.size();
    if (!fits || n_rope > state.size() / sizeof(int32_t) ||
        state.size() != sizeof(header) + n_rope * sizeof(int32_t) +
                            n_rows * (n_feat * sizeof(float) + sizeof(llama_token)) + cache_.state_size(n_slots)) {
        throw std::invalid_argument(format("the saved state has %d + %d positions, the draft's context holds %d",
                                           header.pos_first, header.n_tokens, n_ctx()));
    }

    const uint8_t *          src = state.data() + sizeof(header);
    std::vector<float>       rows(n_rows * n_feat);
    std::vector<llama_token> tokens(n_rows);
    std::copy_n(src, rows.size() * sizeof(float), reinterpret_cast<uint8_t *>(rows.data()));
    src += rows.size() * sizeof(float);
    std::copy_n(src, n_rows * sizeof(llama_token), reinterpret_cast<uint8_t *>(tokens.data()));
    src += n_rows * sizeof(llama_token);

    const auto is_foreign = [this](llama_token id) {
        return id < 0 || id >= n_vocab_;
    };
    if (std::any_of(tokens.begin(), tokens.end(), is_foreign) || header.seeded < -1 ||
        (header.seeded >= 0 && (n_rows != 1 || is_foreign(header.seeded)))) {
        throw std::invalid_argument("the saved state of the draft is damaged: its tokens are not in the vocabulary");
    }

    std::vector<int32_t> rope(n_rope);
    std::copy_n(src, n_rope * sizeof(int32_t), reinterpret_cast<uint8_t *>(rope.data()));
    src += n_rope * sizeof(int32_t);
    if (!positions_[seq_id].restore(rope)) {
        throw std::invalid_argument("the saved state of the draft is damaged: its images are not where they can be");
    }

    on_change_();
    request(seq_id, header.pos_start + n_slots);
    provide();
    cache_.state_set(seq_id, header.pos_start, n_slots, src);
    seq.restore(header.pos_start, header.pos_first, std::move(rows), std::move(tokens),
                header.seeded >= 0 ? std::optional<llama_token>(header.seeded) : std::nullopt);
}

} // namespace eagle3
