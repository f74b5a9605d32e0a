// Going back, copies, states and noise of an MTP drafter's sequences.

#include "drafter/state_header.h"
#include "drafters/llama_context/mtp_drafter.h"
#include "error.h"

#include <algorithm>
#include <cstring>

namespace eagle3 {

namespace {

constexpr uint32_t state_magic = 0x32504d4c; // "LMP2"

struct state_header {
    uint32_t       magic;
    saved_sequence sequence;
    int32_t        n_embd;
    uint64_t       fingerprint;
    uint64_t       size;    // of the whole state
    uint64_t       n_cells; // bytes of llama.cpp's own states after all else, each after the number of its own
};

} // namespace

int32_t mtp_drafter::truncate(int32_t n_past, llama_seq_id seq_id, bool same_next) {
    draft_sequence & seq = sequences_[seq_id];
    leave();
    n_past = seq.truncate(n_past, same_next);
    trim(seq_id);
    return n_past;
}

void mtp_drafter::restart(int32_t n_past, llama_seq_id seq_id) {
    sequences_.check_restart(n_past, seq_id);
    leave();
    sequences_[seq_id].restart(n_past);
    for (draft_context * ctx : contexts()) {
        ctx->clear(seq_id);
    }
    restart_text(seq_id);
}

int32_t mtp_drafter::copy(llama_seq_id src, llama_seq_id dst, int32_t n_past, bool same_next) {
    sequences_.check_copy(src, dst, n_past);
    restart(0, dst);
    draft_sequence prefix = sequences_[src].prefix(n_past, same_next);
    if (prefix.n_slots() > prefix.pos_start()) {
        for (draft_context * ctx : contexts()) {
            ctx->copy(src, dst, prefix.n_slots());
        }
    }
    sequences_[dst] = std::move(prefix);
    return sequences_[dst].n_past();
}

std::vector<uint8_t> mtp_drafter::state_get(llama_seq_id seq_id) {
    const saved_sequence saved = sequences_.describe(seq_id);
    leave(); // llama.cpp saves the part of a window that the last cell sees, which must be a valid one
    std::vector<uint8_t> cells;
    if (sequences_.n_slots(saved) > 0) {
        for (draft_context * ctx : contexts()) {
            const std::vector<uint8_t> own   = ctx->save(seq_id);
            const uint64_t             n_own = own.size();
            const auto *               bytes = reinterpret_cast<const uint8_t *>(&n_own);
            cells.insert(cells.end(), bytes, bytes + sizeof(n_own));
            cells.insert(cells.end(), own.begin(), own.end());
        }
    }
    const size_t       size   = sizeof(state_header) + sequences_.n_bytes(saved) + cells.size();
    const state_header header = { state_magic, saved, n_embd_, fingerprint_, size, cells.size() };

    std::vector<uint8_t> state(size);
    memcpy(state.data(), &header, sizeof(header));
    uint8_t * dst = sequences_.save(seq_id, state.data() + sizeof(header));
    std::copy(cells.begin(), cells.end(), dst);
    return state;
}

void mtp_drafter::state_set(const std::vector<uint8_t> & state, llama_seq_id seq_id) {
    sequences_.check(seq_id);
    const auto header = read_header<state_header>(state, state_magic, "an MTP draft");
    if (header.fingerprint != fingerprint_ || header.n_embd != n_embd_) {
        throw incompatible_draft_error(format("the saved state belongs to another model than '%s'", path().c_str()));
    }
    const saved_sequence & saved   = header.sequence;
    const int32_t          n_slots = sequences_.n_slots(saved);
    if (n_slots < 0 || (n_slots > 0) != (header.n_cells > 0) || header.n_cells > state.size() ||
        state.size() - header.n_cells != sizeof(header) + sequences_.n_bytes(saved)) {
        throw sequences_.misfit(saved);
    }
    const uint8_t * src    = state.data() + sizeof(header);
    draft_sequence  loaded = sequences_.load(saved, src);
    src += sequences_.n_bytes(saved);
    restart(0, seq_id);
    const uint8_t * const end = state.data() + state.size();
    for (draft_context * ctx : header.n_cells > 0 ? contexts() : std::vector<draft_context *>()) {
        uint64_t n_own = 0;
        if (static_cast<size_t>(end - src) >= sizeof(n_own)) {
            memcpy(&n_own, src, sizeof(n_own));
            src += sizeof(n_own);
        }
        if (n_own == 0 || n_own > static_cast<uint64_t>(end - src)) {
            restart(0, seq_id);
            throw sequences_.misfit(saved);
        }
        ctx->load(src, n_own, seq_id, saved.pos_start, saved.pos_start + n_slots);
        src += n_own;
    }
    sequences_[seq_id] = std::move(loaded);
}

} // namespace eagle3
