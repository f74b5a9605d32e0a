// Drafts that are decoded: trees in the cells that their leaves share, and what is kept of a draft.

#include "error.h"
#include "target/snapshot_moves.h"
#include "target/target.h"

#include <algorithm>

namespace eagle3 {

// an id of the pool that holds the owner's prefix up to a position; there is a free one
llama_seq_id target::take_leaf(llama_seq_id owner, llama_pos end) {
    llama_seq_id best = -1;
    for (llama_seq_id s = n_seq + n_guards; s < n_seq_max; ++s) {
        if (!loans[s].busy &&
            (best < 0 || loans[s].owner == owner || (loans[s].owner < 0 && loans[best].owner != owner))) {
            best = s;
            if (loans[s].owner == owner) {
                break;
            }
        }
    }
    leaf_loan &    loan = loans[best];
    llama_memory_t mem  = llama_get_memory(ctx);
    if (loan.owner != owner) {
        llama_memory_seq_rm(mem, best, 0, -1);
        loan = { owner, 0, false };
    }
    lend(best, end);
    loan.busy = true;
    return best;
}

// have an id borrow its owner's prefix up to a position
void target::lend(llama_seq_id id, llama_pos end) {
    leaf_loan &    loan = loans[id];
    llama_memory_t mem  = llama_get_memory(ctx);
    if (loan.n_lent < end) {
        llama_memory_seq_cp(mem, loan.owner, id, loan.n_lent, end);
        loan.n_lent = end;
    }
    // llama.cpp wants both to begin alike; cells of the pass that has just been may be gone from the owner's window
    if (end > 0 && llama_memory_seq_pos_min(mem, id) != llama_memory_seq_pos_min(mem, loan.owner)) {
        llama_memory_seq_rm(mem, id, 0, -1);
        llama_memory_seq_cp(mem, loan.owner, id, 0, end);
    }
}

void target::add_tree(const batch_part & part) {
    const auto           n = static_cast<int32_t>(part.tokens.size());
    std::vector<int32_t> depth(n, 0);
    std::vector<int32_t> n_below(n, 0); // leaves
    for (int32_t i = 1; i < n; ++i) {
        depth[i] = depth[part.parents[i]] + 1;
    }
    for (int32_t i = n - 1; i >= 0; --i) {
        n_below[i] = std::max(n_below[i], 1);
        if (i > 0) {
            n_below[part.parents[i]] += n_below[i];
        }
    }
    const llama_pos           pos    = position(part.seq_id, part.n_past);
    std::vector<llama_seq_id> leaves = { part.seq_id };
    while (static_cast<int32_t>(leaves.size()) < n_below[0]) {
        leaves.push_back(take_leaf(part.seq_id, pos));
    }
    open_draft & draft = drafts[part.seq_id];
    draft.parents      = part.parents;
    draft.leaf.assign(n, part.seq_id);
    // the leaves below each node are neighbours if they are numbered in depth-first order: [first, first + n_below)
    std::vector<int32_t> first(n, 0), next(n, 0);
    for (int32_t i = 0; i < n; ++i) {
        if (i > 0) {
            first[i] = next[part.parents[i]];
            next[part.parents[i]] += n_below[i];
        }
        next[i]       = first[i];
        draft.leaf[i] = leaves[first[i]];
        // positions of a tree reach as far as it is deep, but every node takes a cell
        add_token(part.tokens[i], pos + depth[i], part.logits != part_logits::none, /*visible =*/true);
        batch_n_seq.back() = n_below[i];
        batch_seq_ids.insert(batch_seq_ids.end(), leaves.begin() + first[i], leaves.begin() + first[i] + n_below[i]);
    }
}

bool target::holds_draft(llama_seq_id seq_id) const {
    check_seq(seq_id);
    return drafts[seq_id].n_tokens > 0;
}

void target::keep(llama_seq_id seq_id, const std::vector<int32_t> & path) {
    if (!holds_draft(seq_id)) {
        throw error(format("sequence %d has no draft to keep a path of: none was decoded, or that failed", seq_id));
    }
    const open_draft draft = drafts[seq_id];
    for (size_t i = 0; i < path.size(); ++i) {
        const auto row      = path[i];
        const bool in_range = row >= 0 && row < draft.n_tokens;
        if (!in_range || (i == 0 ? row != 0 : (draft.parents.empty() ? row - 1 : draft.parents[row]) != path[i - 1])) {
            throw std::invalid_argument(format("row %d does not go on from the path before it", row));
        }
    }
    drafts[seq_id].n_tokens = 0;
    const auto n_kept       = static_cast<int32_t>(path.size());
    if (draft.parents.empty()) {
        rounds[seq_id].commit(n_kept);
        sync_positions(seq_id); // snapshots may have lost all
        return;
    }
    if (path.empty()) {
        truncate(positions[seq_id].count(draft.pos), seq_id);
        return;
    }
    llama_memory_t     mem   = llama_get_memory(ctx);
    const llama_seq_id leaf  = draft.leaf[path.back()];
    const llama_pos    first = draft.pos + 1;
    const llama_pos    end   = draft.pos + n_kept;
    if (leaf == seq_id) {
        llama_memory_seq_rm(mem, seq_id, end, -1);
    } else {
        llama_memory_seq_rm(mem, seq_id, first, -1);
        llama_memory_seq_cp(mem, leaf, seq_id, first, end);
    }
    drop_leaves(seq_id, draft.pos);
}

// In a pool llama.cpp takes cells that have left their sequence's window for others, even while there are empty ones,
// unless two sequences have them: what could be gone back to was lost to other texts
void target::guard_windows() {
    for (llama_seq_id s = 0; s < n_guards; ++s) {
        if (drafts[s].n_tokens == 0) {
            lend(n_seq + s, rounds[s].n_past());
        }
    }
}

// the leaves of a sequence keep what they borrow before a position
void target::drop_leaves(llama_seq_id owner, llama_pos end) {
    for (llama_seq_id s = n_seq; s < n_seq_max; ++s) {
        leaf_loan & loan = loans[s];
        if (loan.owner == owner && (loan.busy || loan.n_lent > end)) {
            llama_memory_seq_rm(llama_get_memory(ctx), s, end, -1);
            loan.n_lent = std::min(loan.n_lent, end);
            loan.busy   = false;
        }
    }
}

bool target::can_take_back(const std::vector<batch_part> & parts) const {
    const auto is_draft = [](const batch_part & part) {
        return part.is_draft && part.tokens.size() > 1;
    };
    if (rounds[0].kind() != rollback_kind::snapshots || parts.size() < 2 ||
        std::none_of(parts.begin(), parts.end(), is_draft)) {
        return true;
    }
    std::vector<llama_seq_id> ids;
    for (const auto & part : parts) {
        check_seq(part.seq_id);
        ids.insert(ids.end(), part.tokens.size(), part.seq_id);
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
    const auto lost            = snapshots_lost(batch, ubatch_split_of(ctx), n_seq_max);
    return std::none_of(parts.begin(), parts.end(), [&](const batch_part & part) {
        return is_draft(part) && lost[static_cast<size_t>(part.seq_id)];
    });
}

void target::forget_lost_snapshots() {
    if (rounds[0].kind() != rollback_kind::snapshots) {
        return;
    }
    const auto lost = snapshots_lost(as_batch(), ubatch_split_of(ctx), n_seq_max);
    for (size_t s = 0; s < lost.size(); ++s) {
        if (lost[s]) {
            rounds[s].forget_snapshots();
        }
    }
}

} // namespace eagle3
