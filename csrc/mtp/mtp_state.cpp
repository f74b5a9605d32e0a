// What a sequence of an MTP drafter holds: going back, copies, states, noise.

#include "error.h"
#include "load_guard.h"
#include "mtp/mtp_drafter.h"

#include <algorithm>
#include <cstring>

namespace eagle3 {

namespace {

constexpr uint32_t state_magic = 0x31504d4c; // "LMP1"

struct state_header {
    uint32_t magic;
    int32_t  pos_start;
    int32_t  pos_first;
    int32_t  n_tokens;
    int32_t  seeded; // -1 = not
    int32_t  n_embd;
    uint64_t fingerprint;
    uint64_t size;    // of the whole state
    uint64_t n_cells; // bytes of llama.cpp's own state behind all else
};

} // namespace

void mtp_drafter::set_noise(std::shared_ptr<const gumbel_noise> noise, llama_seq_id seq_id) {
    sequence(seq_id);
    noise_[seq_id] = std::move(noise);
}

int32_t mtp_drafter::truncate(int32_t n_past, llama_seq_id seq_id, bool same_next) {
    draft_sequence & seq = sequence(seq_id);
    leave();
    n_past = seq.truncate(n_past, same_next);
    trim(seq_id);
    return n_past;
}

void mtp_drafter::restart(int32_t n_past, llama_seq_id seq_id) {
    draft_sequence & seq = sequence(seq_id);
    if (n_past < 0 || n_past > n_ctx()) {
        throw std::invalid_argument(format("expected a position in 0..%d, found %d", n_ctx(), n_past));
    }
    leave();
    seq.restart(n_past);
    llama_memory_seq_rm(llama_get_memory(ctx_.get()), seq_id, -1, -1);
}

int32_t mtp_drafter::copy(llama_seq_id src, llama_seq_id dst, int32_t n_past, bool same_next) {
    const draft_sequence & from = sequence(src);
    draft_sequence &       to   = sequence(dst);
    if (src == dst) {
        throw std::invalid_argument(format("sequence %d cannot be copied to itself", src));
    }
    if (n_past < 0 || n_past > from.n_past()) {
        throw std::invalid_argument(
            format("expected a position of sequence %d, in 0..%d, found %d", src, from.n_past(), n_past));
    }
    leave();
    restart(0, dst);
    draft_sequence prefix = from.prefix(n_past, same_next);
    if (prefix.n_slots() > prefix.pos_start()) {
        copy_cells(src, dst, prefix.n_slots());
    }
    to = std::move(prefix);
    return to.n_past();
}

// cells before position `end`, into an empty sequence
void mtp_drafter::copy_cells(llama_seq_id src, llama_seq_id dst, int32_t end) {
    const llama_memory_t mem = llama_get_memory(ctx_.get());
    if (shares_cells_) {
        llama_memory_seq_cp(mem, src, dst, 0, end);
        return;
    }
    // each sequence has cells of its own, of which llama.cpp copies all or none, and late
    const std::vector<uint8_t> cells = save_cells(src);
    load_cells(cells.data(), cells.size(), dst);
    llama_memory_seq_rm(mem, dst, end, -1);
}

std::vector<uint8_t> mtp_drafter::save_cells(llama_seq_id seq_id) const {
    std::vector<uint8_t> cells(llama_state_seq_get_size(ctx_.get(), seq_id));
    cells.resize(llama_state_seq_get_data(ctx_.get(), cells.data(), cells.size(), seq_id));
    return cells;
}

void mtp_drafter::load_cells(const uint8_t * cells, size_t n_bytes, llama_seq_id seq_id) {
    const abort_guard guard;
    if (llama_state_seq_set_data(ctx_.get(), cells, n_bytes, seq_id) == 0) {
        llama_memory_seq_rm(llama_get_memory(ctx_.get()), seq_id, -1, -1);
        throw error("the draft's context does not take the saved state: it is damaged, or there is no room for it");
    }
}

std::vector<uint8_t> mtp_drafter::state_get(llama_seq_id seq_id) {
    const draft_sequence & seq    = sequence(seq_id);
    const size_t           n_rows = seq.n_rows();
    const size_t           n_row  = n_embd_ * sizeof(float);
    leave(); // of a window llama.cpp saves what the last cell sees, which must be a valid one
    std::vector<uint8_t> cells;
    if (seq.n_slots() > seq.pos_start()) {
        cells = save_cells(seq_id);
    }
    const size_t       size   = sizeof(state_header) + n_rows * (n_row + sizeof(llama_token)) + cells.size();
    const state_header header = {
        state_magic, seq.pos_start(), seq.pos_first(), seq.n_rows(), seq.seeded().value_or(-1), n_embd_, fingerprint_,
        size,        cells.size()
    };

    std::vector<uint8_t> state(size);
    uint8_t *            dst = state.data();
    memcpy(dst, &header, sizeof(header));
    dst += sizeof(header);
    dst = std::copy_n(reinterpret_cast<const uint8_t *>(seq.rows()), n_rows * n_row, dst);
    dst = std::copy_n(reinterpret_cast<const uint8_t *>(seq.tokens()), n_rows * sizeof(llama_token), dst);
    std::copy(cells.begin(), cells.end(), dst);
    return state;
}

void mtp_drafter::state_set(const std::vector<uint8_t> & state, llama_seq_id seq_id) {
    draft_sequence & seq    = sequence(seq_id);
    state_header     header = {};
    if (state.size() < sizeof(header)) {
        throw std::invalid_argument("not a state of an MTP draft: too short");
    }
    memcpy(&header, state.data(), sizeof(header));
    if (header.magic != state_magic || header.size != state.size()) {
        throw std::invalid_argument("not a state of an MTP draft, or truncated");
    }
    if (header.fingerprint != fingerprint_ || header.n_embd != n_embd_) {
        throw incompatible_draft_error(format("the saved state belongs to another model than '%s'", path_.c_str()));
    }
    const size_t  n_rows  = header.n_tokens;
    const size_t  n_row   = n_embd_ * sizeof(float);
    const bool    fits    = header.pos_start >= 0 && header.pos_first >= header.pos_start && header.n_tokens >= 0 &&
                            header.pos_first <= n_ctx() && header.n_tokens <= n_ctx() - header.pos_first;
    const int32_t n_slots = fits ? header.pos_first - header.pos_start + (header.seeded >= 0 ? 1 : 0) : 0;
    if (!fits || (n_slots > 0) != (header.n_cells > 0) || header.n_cells > state.size() ||
        state.size() - header.n_cells != sizeof(header) + n_rows * (n_row + sizeof(llama_token))) {
        throw std::invalid_argument(format("the saved state has %d + %d positions, the draft's context holds %d",
                                           header.pos_first, header.n_tokens, n_ctx()));
    }
    const uint8_t *          src = state.data() + sizeof(header);
    std::vector<float>       rows(n_rows * n_embd_);
    std::vector<llama_token> tokens(n_rows);
    std::copy_n(src, n_rows * n_row, reinterpret_cast<uint8_t *>(rows.data()));
    src += n_rows * n_row;
    std::copy_n(src, n_rows * sizeof(llama_token), reinterpret_cast<uint8_t *>(tokens.data()));
    src += n_rows * sizeof(llama_token);

    const auto is_foreign = [this](llama_token id) {
        return id < 0 || id >= n_vocab_;
    };
    if (std::any_of(tokens.begin(), tokens.end(), is_foreign) || header.seeded < -1 ||
        (header.seeded >= 0 && (n_rows != 1 || is_foreign(header.seeded)))) {
        throw std::invalid_argument("the saved state of the draft is damaged: its tokens are not in the vocabulary");
    }
    restart(0, seq_id);
    if (header.n_cells > 0) {
        load_cells(src, header.n_cells, seq_id);
        const llama_memory_t mem = llama_get_memory(ctx_.get());
        llama_memory_seq_rm(mem, seq_id, header.pos_start + n_slots, -1);
        // of a window llama.cpp saves what is still seen
        if (llama_memory_seq_pos_min(mem, seq_id) < header.pos_start ||
            llama_memory_seq_pos_max(mem, seq_id) != header.pos_start + n_slots - 1) {
            llama_memory_seq_rm(mem, seq_id, -1, -1);
            throw std::invalid_argument(
                "the saved state of the draft is damaged: its positions are not what they were");
        }
    }
    seq.restore(header.pos_start, header.pos_first, std::move(rows), std::move(tokens),
                header.seeded >= 0 ? std::optional<llama_token>(header.seeded) : std::nullopt);
}

} // namespace eagle3
