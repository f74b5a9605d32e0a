// Going back, copies, states and noise of a block drafter's sequences. Rows do not depend on their next token, so that
// for draft_sequence the next token is always the same.

#include "drafter/state_header.h"
#include "drafters/llama_context/dflash_drafter.h"
#include "error.h"

#include <algorithm>
#include <cstring>

namespace eagle3 {

namespace {

constexpr uint32_t state_magic = 0x3146444c; // "LDF1"

// After it comes llama.cpp's own state. Waiting rows are evaluated first, since they are larger than their K/V.
struct state_header {
    uint32_t       magic;
    saved_sequence sequence;
    int32_t        n_embd_feat;
    uint64_t       fingerprint;
    uint64_t       size; // of the whole state
};

} // namespace

void dflash_drafter::set_noise(std::shared_ptr<const gumbel_noise> noise, llama_seq_id seq_id) {
    sequences_.check(seq_id);
    foresight_[seq_id].noise = std::move(noise);
}

void dflash_drafter::set_rules(std::shared_ptr<grammar_lookahead> rules, llama_seq_id seq_id) {
    sequences_.check(seq_id);
    foresight_[seq_id].rules = std::move(rules);
}

int32_t dflash_drafter::truncate(int32_t n_past, llama_seq_id seq_id, bool same_next) {
    (void) same_next;
    draft_sequence & seq = sequences_[seq_id];
    leave();
    n_past = seq.truncate(n_past, true);
    ctx_.trim(seq_id, seq.pos_first());
    return n_past;
}

void dflash_drafter::restart(int32_t n_past, llama_seq_id seq_id) {
    sequences_.check_restart(n_past, seq_id);
    leave();
    sequences_[seq_id].restart(n_past);
    ctx_.clear(seq_id);
}

int32_t dflash_drafter::copy(llama_seq_id src, llama_seq_id dst, int32_t n_past, bool same_next) {
    (void) same_next;
    sequences_.check_copy(src, dst, n_past);
    restart(0, dst);
    take_in(src, sequences_[src].n_rows());
    draft_sequence prefix = sequences_[src].prefix(n_past, true);
    if (prefix.pos_first() > prefix.pos_start()) {
        ctx_.copy(src, dst, prefix.pos_first());
    }
    sequences_[dst] = std::move(prefix);
    return sequences_[dst].n_past();
}

std::vector<uint8_t> dflash_drafter::state_get(llama_seq_id seq_id) {
    sequences_.check(seq_id);
    leave();
    take_in(seq_id, sequences_[seq_id].n_rows());
    const saved_sequence saved = sequences_.describe(seq_id);
    std::vector<uint8_t> cells;
    if (sequences_.n_slots(saved) > 0) {
        cells = ctx_.save(seq_id);
    }
    const state_header   header = { state_magic, saved, n_embd_feat(), fingerprint_, sizeof(header) + cells.size() };
    std::vector<uint8_t> state(header.size);
    memcpy(state.data(), &header, sizeof(header));
    std::copy(cells.begin(), cells.end(), state.begin() + sizeof(header));
    return state;
}

void dflash_drafter::state_set(const std::vector<uint8_t> & state, llama_seq_id seq_id) {
    sequences_.check(seq_id);
    const auto header = read_header<state_header>(state, state_magic, "a block drafter");
    if (header.fingerprint != fingerprint_ || header.n_embd_feat != n_embd_feat()) {
        throw incompatible_draft_error(
            format("the saved state belongs to another model than '%s'", hparams_.path.c_str()));
    }
    const saved_sequence & saved   = header.sequence;
    const size_t           n_cells = state.size() - sizeof(header);
    const int32_t          n_slots = sequences_.n_slots(saved);
    if (n_slots < 0 || saved.n_tokens != 0 || saved.seeded >= 0 || (n_slots > 0) != (n_cells > 0)) {
        throw sequences_.misfit(saved);
    }
    draft_sequence loaded = sequences_.load(saved, nullptr);
    restart(0, seq_id);
    if (n_cells > 0) {
        ctx_.load(state.data() + sizeof(header), n_cells, seq_id, saved.pos_start, saved.pos_first);
    }
    sequences_[seq_id] = std::move(loaded);
}

} // namespace eagle3
