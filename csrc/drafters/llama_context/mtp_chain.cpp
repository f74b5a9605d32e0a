// Chained blocks for multi-token prediction.

#include "drafters/llama_context/mtp_drafter.h"

#include <algorithm>

namespace eagle3 {

std::vector<draft_context *> mtp_drafter::contexts() {
    std::vector<draft_context *> all = { &context() };
    for (further_block & block : further_) {
        all.push_back(&block.ctx);
    }
    return all;
}

// Rows of the target are written by all blocks; the first block predicts the next token.
void mtp_drafter::compute() {
    context_drafter::compute();
    if (!further_.empty()) {
        mute_batch();
        for (further_block & block : further_) {
            compute_in(block.ctx);
        }
    }
}

bool mtp_drafter::find_output_matrices() {
    bool is_one_found = false;
    for (draft_context * ctx : contexts()) {
        is_one_found = ctx->find_output_matrix(n_out_max()) != nullptr || is_one_found;
    }
    return is_one_found;
}

bool mtp_drafter::trim(llama_seq_id seq_id) {
    const std::vector<draft_context *> all = contexts();
    return std::all_of(all.begin(), all.end(), [&](draft_context * ctx) { return ctx->trim(seq_id, n_cells(seq_id)); });
}

void mtp_drafter::on_leave() {
    rows_out_.clear();
    for (further_block & block : further_) {
        block.paths.clear();
    }
}

llama_seq_id mtp_drafter::find_id(int32_t node) {
    return further_.empty() ? context_drafter::find_id(node) : nodes()[node].seq_id;
}

// Computes nodes of one block and of different sequences. A node's row was kept by the block that predicted the node.
context_drafter::computed_nodes mtp_drafter::compute_nodes(std::vector<int32_t> & left) {
    if (further_.empty()) {
        return context_drafter::compute_nodes(left);
    }
    const auto block_of = [this](int32_t i) {
        return static_cast<size_t>(std::min(nodes()[i].depth, static_cast<int32_t>(further_.size()))) - 1;
    };
    const size_t              i_block = block_of(left.front());
    further_block &           block   = further_[i_block];
    computed_nodes            done    = { &block.ctx, {}, {} };
    std::vector<int32_t>      others;
    std::vector<llama_seq_id> seq_ids;
    clear_batch();
    for (const int32_t i : left) {
        const llama_seq_id   seq_id = nodes()[i].seq_id;
        std::vector<int32_t> path;
        for (int32_t at = i; at >= 0; at = nodes()[at].parent) {
            path.insert(path.begin(), at);
        }
        const auto n_path  = static_cast<int32_t>(path.size());
        const bool is_free = std::find(seq_ids.begin(), seq_ids.end(), seq_id) == seq_ids.end();
        if (block_of(i) != i_block || !is_free || batch().n_rows() + n_path > n_batch()) {
            others.push_back(i);
            continue;
        }
        std::vector<int32_t> & there  = block.paths[seq_id];
        const int32_t          n_most = std::min(n_path - 1, static_cast<int32_t>(there.size()));
        const auto             n_same = static_cast<int32_t>(
            std::mismatch(path.begin(), path.begin() + n_most, there.begin()).first - path.begin());
        const int32_t pos = pos_of(seq_id) + 1;
        block.ctx.trim(seq_id, pos + n_same);
        for (int32_t k = n_same; k < n_path; ++k) {
            add_row(seq_id, nodes()[path[k]].token, pos + k,
                    rows_out_.data() + static_cast<size_t>(kept_of(path[k])) * n_embd_, k + 1 == n_path);
        }
        there = std::move(path);
        seq_ids.push_back(seq_id);
        done.nodes.push_back(i);
        done.i_batch.push_back(batch().n_rows() - 1);
    }
    left = std::move(others);
    if (!done.nodes.empty()) {
        compute_in(block.ctx);
    }
    return done;
}

} // namespace eagle3
