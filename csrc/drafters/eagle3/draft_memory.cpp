#include "drafters/eagle3/draft_memory.h"

#include "drafter/state_header.h"
#include "error.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace eagle3 {

namespace {

constexpr uint32_t state_magic = 0x35454c45; // "ELE5"

struct state_header {
    uint32_t       magic;
    saved_sequence sequence;
    int32_t        n_rope; // numbers of rope_positions
    uint64_t       fingerprint;
    uint64_t       size; // of the whole state
    int32_t        type_k, type_v;
};

} // namespace

draft_memory::draft_memory(const head_hparams & hparams, const head_weights & weights, int32_t n_vocab, int32_t n_ctx,
                           int32_t n_seq_max, ggml_type type_k, ggml_type type_v, const device & dev,
                           std::function<void()> on_change) :
    hparams_(hparams), weights_(weights), on_change_(std::move(on_change)),
    cache_(hparams, n_ctx, n_seq_max, type_k, type_v, dev),
    sequences_(hparams.n_embd_feat(), { n_vocab, cache_.n_ctx(), n_seq_max }),
    positions_(static_cast<size_t>(n_seq_max)) {}

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
    sequences_.check_copy(src, dst, n_past);
    restart(0, dst); // a change
    draft_sequence prefix = sequence(src).prefix(n_past, same_next);
    const int32_t  n      = prefix.n_slots() - prefix.pos_start();
    if (n > 0) {
        request(dst, prefix.n_slots());
        provide();
        cache_.copy(src, dst, prefix.pos_start(), n);
    }
    n_past          = prefix.n_past();
    sequence(dst)   = std::move(prefix);
    positions_[dst] = positions_[src];
    positions_[dst].cut(n_past);
    return n_past;
}

void draft_memory::restart(int32_t n_past, llama_seq_id seq_id) {
    sequences_.check_restart(n_past, seq_id);
    on_change_();
    sequence(seq_id).restart(n_past);
    positions_[seq_id].cut(0);
    cache_.release(seq_id);
}

void draft_memory::add_image(int32_t first, int32_t n_pos, const std::vector<int32_t> & pos, llama_seq_id seq_id) {
    draft_limits::check_add_image(first, sequence(seq_id).n_past());
    if (pos.empty() || pos.size() % rope_positions::n_sections != 0) {
        throw std::invalid_argument(format("expected %d positions for each row of an image, found %zu in all",
                                           rope_positions::n_sections, pos.size()));
    }
    positions_[seq_id].add(first, n_pos, pos);
}

std::vector<uint8_t> draft_memory::state_get(llama_seq_id seq_id) const {
    const saved_sequence saved   = sequences_.describe(seq_id);
    const int32_t        n_slots = sequences_.n_slots(saved);
    const auto           rope    = positions_[seq_id].save();
    const size_t         size =
        sizeof(state_header) + sequences_.n_bytes(saved) + rope.size() * sizeof(int32_t) + cache_.state_size(n_slots);

    const state_header header = {
        state_magic,      saved, static_cast<int32_t>(rope.size()), weights_.fingerprint(), size, cache_.k(0)->type,
        cache_.v(0)->type
    };

    std::vector<uint8_t> state(size);
    memcpy(state.data(), &header, sizeof(header));
    uint8_t * dst = sequences_.save(seq_id, state.data() + sizeof(header));
    // not memcpy: without images there is nothing to copy from
    dst           = std::copy_n(reinterpret_cast<const uint8_t *>(rope.data()), rope.size() * sizeof(int32_t), dst);
    cache_.state_get(seq_id, saved.pos_start, n_slots, dst);
    return state;
}

void draft_memory::state_set(const std::vector<uint8_t> & state, llama_seq_id seq_id) {
    draft_sequence & seq    = sequence(seq_id);
    const auto       header = read_header<state_header>(state, state_magic, "an EAGLE-3 draft");
    if (header.fingerprint != weights_.fingerprint() || header.type_k != cache_.k(0)->type ||
        header.type_v != cache_.v(0)->type) {
        throw incompatible_draft_error(
            format("the saved state belongs to another head or cache type than '%s'", hparams_.path.c_str()));
    }
    const saved_sequence & saved   = header.sequence;
    const int32_t          n_slots = sequences_.n_slots(saved);
    const size_t           n_rope  = header.n_rope >= 0 ? header.n_rope : state.size();
    if (n_slots < 0 || n_rope > state.size() / sizeof(int32_t) ||
        state.size() !=
            sizeof(header) + n_rope * sizeof(int32_t) + sequences_.n_bytes(saved) + cache_.state_size(n_slots)) {
        throw sequences_.misfit(saved);
    }

    const uint8_t * src    = state.data() + sizeof(header);
    draft_sequence  loaded = sequences_.load(saved, src);
    src += sequences_.n_bytes(saved);

    std::vector<int32_t> rope(n_rope);
    std::copy_n(src, n_rope * sizeof(int32_t), reinterpret_cast<uint8_t *>(rope.data()));
    src += n_rope * sizeof(int32_t);
    if (!positions_[seq_id].restore(rope)) {
        throw std::invalid_argument("the saved state of the draft is damaged: its images are not where they can be");
    }

    on_change_();
    request(seq_id, saved.pos_start + n_slots);
    provide();
    cache_.state_set(seq_id, saved.pos_start, n_slots, src);
    seq = std::move(loaded);
}

} // namespace eagle3
