#include "target/target_memory.h"

#include "error.h"
#include "target/snapshot_moves.h"

#include <algorithm>
#include <cstring>

namespace eagle3 {

namespace {

// Checks the ids, and returns n_seq.
int32_t check_ids(const llama_context * ctx, int32_t n_seq, int32_t n_guards) {
    const auto n_seq_max = static_cast<int32_t>(llama_n_seq_max(ctx));
    if (n_seq < 0 || n_seq > n_seq_max) {
        throw std::invalid_argument(format("n_seq = %d: the context has n_seq_max = %d", n_seq, n_seq_max));
    }
    if (n_seq == 0) {
        n_seq = n_seq_max;
    }
    if (n_guards != 0 && (n_guards != n_seq || n_guards > n_seq_max - n_seq)) {
        throw std::invalid_argument(
            format("n_guards = %d: expected 0 or n_seq = %d, of n_seq_max = %d", n_guards, n_seq, n_seq_max));
    }
    return n_seq;
}

} // namespace

target_memory::target_memory(llama_context * ctx, int32_t n_seq, int32_t n_guards) :
    ctx_(ctx), n_ctx_(static_cast<int32_t>(llama_n_ctx_seq(ctx))),
    n_seq_max_(static_cast<int32_t>(llama_n_seq_max(ctx))), n_seq_(check_ids(ctx, n_seq, n_guards)),
    n_guards_(n_guards), is_pooled_(llama_n_ctx_seq(ctx) == llama_n_ctx(ctx)), leaves_(ctx, n_seq_, n_guards),
    positions_(static_cast<size_t>(n_seq_max_)), drafts_(static_cast<size_t>(n_seq_max_)) {
    const llama_rope_type rope = llama_model_rope_type(llama_get_model(ctx));
    has_sections_              = rope == LLAMA_ROPE_TYPE_MROPE || rope == LLAMA_ROPE_TYPE_IMROPE;
    for (llama_seq_id s = 0; s < n_seq_max_; ++s) {
        rollbacks_.emplace_back(ctx, s);
    }
    can_share_ = is_pooled_ && kind() == rollback_kind::trim;
    if (n_guards > 0 && !can_share_) {
        throw std::invalid_argument("n_guards are for a pool of cells, without recurrent states");
    }
}

void target_memory::check_open() const {
    if (!ctx_) {
        throw error("the target is closed");
    }
}

void target_memory::check_seq(llama_seq_id seq_id) const {
    check_open();
    if (seq_id < 0 || seq_id >= n_seq_) {
        throw std::invalid_argument(format("sequence id %d is out of range: the context has n_seq_max = %d%s", seq_id,
                                           n_seq_max_,
                                           n_seq_ < n_seq_max_ ? ", the last of them for leaves of trees" : ""));
    }
}

seq_rollback & target_memory::rollback(llama_seq_id seq_id) {
    check_seq(seq_id);
    return rollbacks_[seq_id];
}

const seq_rollback & target_memory::rollback(llama_seq_id seq_id) const {
    check_seq(seq_id);
    return rollbacks_[seq_id];
}

int32_t target_memory::n_past(llama_seq_id seq_id) const {
    check_seq(seq_id);
    return positions_[seq_id].count(rollbacks_[seq_id].n_past());
}

llama_pos target_memory::position(llama_seq_id seq_id, int32_t n_past) const {
    check_seq(seq_id);
    return positions_[seq_id].at(n_past);
}

// Adopts where the memory ends, as it may have lost more than was asked for.
void target_memory::sync_positions(llama_seq_id id) {
    positions_[id].cut(positions_[id].count(rollbacks_[id].n_past()));
}

int32_t target_memory::truncate(int32_t n_past, llama_seq_id seq_id) {
    check_seq(seq_id);
    if (n_past < 0) {
        throw std::invalid_argument(format("n_past must not be negative, not %d", n_past));
    }
    token_positions & known    = positions_[seq_id];
    seq_rollback &    rollback = rollbacks_[seq_id];
    const llama_pos   end      = known.at(known.floor(n_past));
    drafts_[seq_id].n_tokens   = 0;
    // a saved state that is restored has new cells
    leaves_.release(seq_id, end >= rollback.n_past() || rollback.can_trim(end) ? end : 0);
    n_past = known.count(rollback.truncate(end));
    known.cut(n_past);
    return n_past;
}

int32_t target_memory::copy(llama_seq_id src, llama_seq_id dst, int32_t n_past) {
    check_seq(src);
    truncate(0, dst);
    n_past              = positions_[src].floor(n_past);
    const llama_pos end = positions_[src].at(n_past);
    if (!is_pooled_ || src == dst || n_past <= 0 || n_past > this->n_past(src)) {
        return 0;
    }
    llama_memory_t mem = llama_get_memory(ctx_);
    if (can_share_ && rollbacks_[src].can_trim(end)) {
        llama_memory_seq_cp(mem, src, dst, 0, end);
    } else {
        const bool            is_whole = kind() != rollback_kind::trim && end == rollbacks_[src].n_past();
        const saved_state_ptr now      = is_whole ? rollbacks_[src].save() : nullptr;
        const saved_state_ptr state    = now ? now : rollbacks_[src].last_saved(end);
        if (!state) {
            return 0;
        }
        llama_memory_seq_cp(mem, src, dst, 0, state->n_past);
        if (!rollbacks_[dst].continue_from(state)) {
            return 0;
        }
        n_past = positions_[src].count(state->n_past);
    }
    positions_[dst] = positions_[src];
    positions_[dst].cut(n_past);
    return n_past;
}

int32_t target_memory::n_past_min(llama_seq_id seq_id) const {
    return positions_[seq_id].count(rollback(seq_id).n_past_min());
}

const std::vector<media_span> & target_memory::spans(llama_seq_id seq_id) const {
    check_seq(seq_id);
    return positions_[seq_id].spans();
}

void target_memory::set_spans(llama_seq_id seq_id, std::vector<media_span> spans) {
    check_seq(seq_id);
    int32_t end = 0;
    for (const media_span & span : spans) {
        if (span.first < end || span.n_tokens < 1 || span.n_tokens > n_ctx_ - span.first || span.n_pos < 1 ||
            span.n_pos > span.n_tokens) {
            throw std::invalid_argument("the images of a saved sequence are not where they can be");
        }
        end = span.first + span.n_tokens;
    }
    positions_[seq_id].restore(std::move(spans));
}

void target_memory::state_get(llama_seq_id seq_id, const allocator & allocate) {
    check_seq(seq_id);
    release_leaves(seq_id);
    const auto & spans    = positions_[seq_id].spans();
    const auto   n_spans  = static_cast<uint32_t>(spans.size());
    const size_t n_images = n_spans * sizeof(media_span);
    // spans come after everything else, and their number is last
    rollbacks_[seq_id].state_get([&](size_t n) {
        uint8_t * dst = allocate(n + n_images + sizeof(n_spans));
        std::copy_n(reinterpret_cast<const uint8_t *>(spans.data()), n_images, dst + n);
        memcpy(dst + n + n_images, &n_spans, sizeof(n_spans));
        return dst;
    });
}

void target_memory::state_set(llama_seq_id seq_id, const uint8_t * src, size_t size) {
    truncate(0, seq_id);
    uint32_t n_spans = 0;
    if (size >= sizeof(n_spans)) {
        size -= sizeof(n_spans);
        memcpy(&n_spans, src + size, sizeof(n_spans));
    }
    if (n_spans > size / sizeof(media_span)) {
        throw std::invalid_argument("not a state of a sequence, or truncated");
    }
    size -= n_spans * sizeof(media_span);
    std::vector<media_span> spans(n_spans);
    std::copy_n(src + size, n_spans * sizeof(media_span), reinterpret_cast<uint8_t *>(spans.data()));
    rollbacks_[seq_id].state_set(src, size);
    try {
        set_spans(seq_id, std::move(spans));
    } catch (...) {
        truncate(0, seq_id);
        throw;
    }
}

void target_memory::clear() {
    check_open();
    for (llama_seq_id s = 0; s < n_seq_; ++s) {
        truncate(0, s);
    }
    llama_memory_clear(llama_get_memory(ctx_), /*data =*/true);
}

bool target_memory::has_draft(llama_seq_id seq_id) const {
    check_seq(seq_id);
    return drafts_[seq_id].n_tokens > 0;
}

void target_memory::accept(llama_seq_id seq_id, const std::vector<int32_t> & path) {
    if (!has_draft(seq_id)) {
        throw error(format("sequence %d has no draft to accept a path of: none was decoded, or that failed", seq_id));
    }
    const open_draft draft = drafts_[seq_id];
    for (size_t i = 0; i < path.size(); ++i) {
        const auto row      = path[i];
        const bool in_range = row >= 0 && row < draft.n_tokens;
        if (!in_range || (i == 0 ? row != 0 : (draft.parents.empty() ? row - 1 : draft.parents[row]) != path[i - 1])) {
            throw std::invalid_argument(format("row %d does not go on from the path before it", row));
        }
    }
    drafts_[seq_id].n_tokens = 0;
    const auto n_kept        = static_cast<int32_t>(path.size());
    if (draft.parents.empty()) {
        rollbacks_[seq_id].commit(n_kept);
        sync_positions(seq_id); // snapshots may have lost all
        return;
    }
    if (path.empty()) {
        truncate(positions_[seq_id].count(draft.pos), seq_id);
        return;
    }
    llama_memory_t     mem   = llama_get_memory(ctx_);
    const llama_seq_id leaf  = draft.leaf[path.back()];
    const llama_pos    first = draft.pos + 1;
    const llama_pos    end   = draft.pos + n_kept;
    if (leaf == seq_id) {
        llama_memory_seq_rm(mem, seq_id, end, -1);
    } else {
        llama_memory_seq_rm(mem, seq_id, first, -1);
        llama_memory_seq_cp(mem, leaf, seq_id, first, end);
    }
    leaves_.release(seq_id, draft.pos);
}

void target_memory::open_chain(llama_seq_id seq_id, int32_t n_past, int32_t n_tokens, bool has_snapshots) {
    open_draft & draft = drafts_[seq_id];
    draft              = { position(seq_id, n_past), n_tokens, {}, {} };
    rollbacks_[seq_id].begin(n_tokens, draft.pos, has_snapshots);
}

std::vector<target_memory::tree_node> target_memory::open_tree(llama_seq_id seq_id, int32_t n_past,
                                                               const std::vector<int32_t> & parents) {
    const auto           n = static_cast<int32_t>(parents.size());
    std::vector<int32_t> depth(n, 0);
    std::vector<int32_t> n_below(n, 0); // leaves
    for (int32_t i = 1; i < n; ++i) {
        depth[i] = depth[parents[i]] + 1;
    }
    for (int32_t i = n - 1; i >= 0; --i) {
        n_below[i] = std::max(n_below[i], 1);
        if (i > 0) {
            n_below[parents[i]] += n_below[i];
        }
    }
    const llama_pos pos = position(seq_id, n_past);
    tree_leaves_        = { seq_id };
    while (static_cast<int32_t>(tree_leaves_.size()) < n_below[0]) {
        tree_leaves_.push_back(leaves_.take(seq_id, pos));
    }
    open_draft & draft = drafts_[seq_id];
    draft              = { pos, n, parents, std::vector<llama_seq_id>(n, seq_id) };
    // the leaves below each node are neighbours if they are numbered in depth-first order: [first, first + n_below)
    std::vector<int32_t>   first(n, 0), next(n, 0);
    std::vector<tree_node> nodes;
    for (int32_t i = 0; i < n; ++i) {
        if (i > 0) {
            first[i] = next[parents[i]];
            next[parents[i]] += n_below[i];
        }
        next[i]       = first[i];
        draft.leaf[i] = tree_leaves_[first[i]];
        // a tree takes as many positions as it is deep, but every node takes a cell
        nodes.push_back({ pos + depth[i], tree_leaves_.data() + first[i], n_below[i] });
    }
    return nodes;
}

void target_memory::add_media(llama_seq_id seq_id, int32_t n_past, int32_t n_tokens, const media_piece & media) {
    positions_[seq_id].append(n_past - media.offset, media.offset, n_tokens,
                              has_sections_ ? media.n_pos : media.offset + n_tokens);
}

void target_memory::guard_windows() {
    for (llama_seq_id s = 0; s < n_guards_; ++s) {
        if (drafts_[s].n_tokens == 0) {
            leaves_.guard(s, rollbacks_[s].n_past());
        }
    }
}

void target_memory::take_back(llama_seq_id id, llama_pos first) {
    rollbacks_[id].failed(first);
    sync_positions(id);
    drafts_[id].n_tokens = 0;
    leaves_.abandon(id);
}

std::vector<bool> target_memory::snapshots_lost(const std::vector<batch_part> & parts) const {
    if (kind() != rollback_kind::snapshots || parts.size() < 2) {
        return {};
    }
    std::vector<llama_seq_id> ids;
    for (const auto & part : parts) {
        ids.insert(ids.end(), rollbacks_[part.seq_id].replay().size() + part.tokens.size(), part.seq_id);
    }
    std::vector<llama_seq_id *> seq_ids;
    for (llama_seq_id & id : ids) {
        seq_ids.push_back(&id);
    }
    std::vector<int32_t> n_seq_ids(ids.size(), 1);
    llama_batch          batch = {};
    batch.n_tokens             = static_cast<int32_t>(ids.size());
    batch.n_seq_id             = n_seq_ids.data();
    batch.seq_id               = seq_ids.data();
    return eagle3::snapshots_lost(batch, ubatch_split_of(ctx_), n_seq_max_);
}

void target_memory::drop_snapshots(const std::vector<bool> & lost) {
    for (size_t s = 0; s < lost.size(); ++s) {
        if (lost[s]) {
            rollbacks_[s].drop_snapshots();
        }
    }
}

void target_memory::drop_snapshots() {
    for (auto & rollback : rollbacks_) {
        rollback.drop_snapshots();
    }
}

} // namespace eagle3
