#include "target/target.h"

#include "error.h"

#include <cstring>

// what a sequence holds: its tokens and their positions, going back, copies, states

namespace eagle3 {

int32_t target::n_past(llama_seq_id seq_id) const {
    check_seq(seq_id);
    return positions[seq_id].count(rounds[seq_id].n_past());
}

llama_pos target::position(llama_seq_id seq_id, int32_t n_past) const {
    check_seq(seq_id);
    return positions[seq_id].at(n_past);
}

// the memory may have lost more than it was to
void target::sync_positions(llama_seq_id seq_id) {
    positions[seq_id].cut(positions[seq_id].count(rounds[seq_id].n_past()));
}

int32_t target::truncate(int32_t n_past, llama_seq_id seq_id) {
    check_seq(seq_id);
    if (n_past < 0) {
        throw std::invalid_argument(format("n_past must not be negative, not %d", n_past));
    }
    token_positions & known = positions[seq_id];
    const llama_pos   end   = known.at(known.floor(n_past));
    drafts[seq_id].n_tokens = 0;
    // a saved state that comes back has cells of its own
    drop_leaves(seq_id, end >= rounds[seq_id].n_past() || rounds[seq_id].can_trim(end) ? end : 0);
    n_past = known.count(rounds[seq_id].truncate(end));
    known.cut(n_past);
    return n_past;
}

int32_t target::copy(llama_seq_id src, llama_seq_id dst, int32_t n_past) {
    check_seq(src);
    truncate(0, dst);
    n_past              = positions[src].floor(n_past);
    const llama_pos end = positions[src].at(n_past);
    if (!can_share || src == dst || n_past <= 0 || n_past > this->n_past(src) || !rounds[src].can_trim(end)) {
        return 0;
    }
    llama_memory_seq_cp(llama_get_memory(ctx), src, dst, 0, end);
    positions[dst] = positions[src];
    positions[dst].cut(n_past);
    return n_past;
}

const std::vector<media_span> & target::spans(llama_seq_id seq_id) const {
    check_seq(seq_id);
    return positions[seq_id].spans();
}

void target::set_spans(llama_seq_id seq_id, std::vector<media_span> spans) {
    check_seq(seq_id);
    int32_t end = 0;
    for (const media_span & span : spans) {
        if (span.first < end || span.n_tokens < 1 || span.n_tokens > n_ctx - span.first || span.n_pos < 1 ||
            span.n_pos > span.n_tokens) {
            throw std::invalid_argument("the images of a saved sequence are not where they can be");
        }
        end = span.first + span.n_tokens;
    }
    positions[seq_id].restore(std::move(spans));
}

std::vector<uint8_t> target::state_get(llama_seq_id seq_id) {
    check_seq(seq_id);
    drop_leaves(seq_id, 0);
    std::vector<uint8_t> state   = rounds[seq_id].state_get();
    const auto &         spans   = positions[seq_id].spans();
    const auto           n_spans = static_cast<uint32_t>(spans.size());
    const auto *         bytes   = reinterpret_cast<const uint8_t *>(spans.data());
    const auto *         count   = reinterpret_cast<const uint8_t *>(&n_spans);
    // behind all else, their number last
    if (n_spans > 0) {
        state.insert(state.end(), bytes, bytes + n_spans * sizeof(media_span));
    }
    state.insert(state.end(), count, count + sizeof(n_spans));
    return state;
}

void target::state_set(llama_seq_id seq_id, const std::vector<uint8_t> & state) {
    truncate(0, seq_id);
    uint32_t n_spans = 0;
    size_t   n_bytes = state.size();
    if (n_bytes >= sizeof(n_spans)) {
        n_bytes -= sizeof(n_spans);
        memcpy(&n_spans, state.data() + n_bytes, sizeof(n_spans));
    }
    if (n_spans > n_bytes / sizeof(media_span)) {
        throw std::invalid_argument("not a state of a sequence, or truncated");
    }
    n_bytes -= n_spans * sizeof(media_span);
    std::vector<media_span> spans(n_spans);
    for (uint32_t i = 0; i < n_spans; ++i) {
        memcpy(&spans[i], state.data() + n_bytes + i * sizeof(media_span), sizeof(media_span));
    }
    rounds[seq_id].state_set({ state.begin(), state.begin() + static_cast<std::ptrdiff_t>(n_bytes) });
    try {
        set_spans(seq_id, std::move(spans));
    } catch (...) {
        truncate(0, seq_id);
        throw;
    }
}

void target::clear() {
    check_open();
    for (llama_seq_id s = 0; s < n_seq; ++s) {
        truncate(0, s);
    }
    llama_memory_clear(llama_get_memory(ctx), /*data =*/true);
}

void target::settle() {
    check_open();
    for (llama_seq_id s = 0; s < n_seq; ++s) {
        drop_leaves(s, 0);
        recurrent_round & round = rounds[s];
        if (!round.replay().empty()) {
            const std::vector<llama_token> tokens = round.replay();
            const int32_t                  n_past = truncate(this->n_past(s) - static_cast<int32_t>(tokens.size()), s);
            decode({ { s, n_past, tokens } });
        }
    }
}

} // namespace eagle3
