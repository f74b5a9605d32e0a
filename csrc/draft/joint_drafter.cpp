#include "draft/joint_drafter.h"

#include "error.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace eagle3 {

joint_drafter::joint_drafter(std::vector<std::shared_ptr<drafter>> parts, int32_t n_embd) :
    n_embd_(static_cast<size_t>(std::max(n_embd, 1))) {
    if (parts.empty()) {
        throw std::invalid_argument("expected drafters, found none");
    }
    const drafter & front = *parts.front();
    for (std::shared_ptr<drafter> & own : parts) {
        const drafter & d = *own;
        if (d.n_ctx() != front.n_ctx() || d.n_seq_max() != front.n_seq_max()) {
            throw std::invalid_argument(format(
                "expected drafters of the same size: '%s' has %d sequences of %d positions, '%s' %d of %d",
                d.path().c_str(), d.n_seq_max(), d.n_ctx(), front.path().c_str(), front.n_seq_max(), front.n_ctx()));
        }
        const bool reads = d.n_embd_feat() > 0;
        if (reads && static_cast<size_t>(d.n_embd_feat()) != d.boundaries().size() * n_embd_) {
            throw incompatible_draft_error(format(
                "'%s' cannot draft beside others: it reads rows of %d values at %zu places, which others read as "
                "hidden states of %zu",
                d.path().c_str(), d.n_embd_feat(), d.boundaries().size(), n_embd_));
        }
        for (const int32_t b : reads ? d.boundaries() : std::vector<int32_t>()) {
            if (std::find(boundaries_.begin(), boundaries_.end(), b) == boundaries_.end()) {
                boundaries_.push_back(b);
            }
        }
        matrices_.insert(matrices_.end(), d.matrices().begin(), d.matrices().end());
        parts_.push_back({ std::move(own), {}, false });
    }
    for (part & p : parts_) {
        if (p.own->n_embd_feat() == 0) {
            continue;
        }
        p.reads_all = p.own->boundaries() == boundaries_;
        for (const int32_t b : p.own->boundaries()) {
            const auto at = std::find(boundaries_.begin(), boundaries_.end(), b) - boundaries_.begin();
            p.offsets.push_back(static_cast<size_t>(at) * n_embd_);
        }
    }
}

std::string joint_drafter::device() const {
    std::string names;
    for (const part & p : parts_) {
        const std::string name = p.own->device();
        if ((", " + names + ", ").find(", " + name + ", ") == std::string::npos) {
            names += (names.empty() ? "" : ", ") + name;
        }
    }
    return names;
}

void joint_drafter::use_cpu_kernels(const kernels::row_limits & limits) {
    for (const part & p : parts_) {
        p.own->use_cpu_kernels(limits);
    }
}

std::map<std::string, int64_t> joint_drafter::cpu_kernels() const {
    std::map<std::string, int64_t> total;
    for (const part & p : parts_) {
        for (const auto & [name, n] : p.own->cpu_kernels()) {
            total[name] += n;
        }
    }
    return total;
}

int32_t joint_drafter::n_embd_feat() const {
    return static_cast<int32_t>(boundaries_.size() * n_embd_);
}

int32_t joint_drafter::n_pos_per_row() const {
    int32_t n = 1;
    for (const part & p : parts_) {
        n = std::max(n, p.own->n_pos_per_row());
    }
    return n;
}

// The hidden states that one of them reads, of rows row_ids
const float * joint_drafter::rows_of(const part & p, const float * rows, int32_t n_tokens, const int32_t * row_ids) {
    const size_t n_row = boundaries_.size() * n_embd_;
    rows_.resize(static_cast<size_t>(n_tokens) * p.offsets.size() * n_embd_);
    float * dst = rows_.data();
    for (int32_t i = 0; i < n_tokens; ++i) {
        const float * row = rows + n_row * static_cast<size_t>(row_ids != nullptr ? row_ids[i] : i);
        for (const size_t offset : p.offsets) {
            dst = std::copy_n(row + offset, n_embd_, dst);
        }
    }
    return rows_.data();
}

void joint_drafter::process(const float * rows, const llama_token * tokens, int32_t n_tokens, int32_t n_past,
                            llama_seq_id seq_id, const int32_t * row_ids, int32_t may_wait) {
    try {
        for (size_t i = 0; i < parts_.size(); ++i) {
            const part & p      = parts_[i];
            const bool   is_own = p.reads_all || p.offsets.empty() || n_tokens <= 0;
            p.own->process(is_own ? rows : rows_of(p, rows, n_tokens, row_ids), tokens, n_tokens, n_past, seq_id,
                           is_own ? row_ids : nullptr, may_wait >> i & 1);
        }
    } catch (...) {
        level(seq_id);
        throw;
    }
}

void joint_drafter::add_image(int32_t first, int32_t n_pos, const std::vector<int32_t> & pos, llama_seq_id seq_id) {
    for (const part & p : parts_) {
        if (p.own->n_pos_per_row() > 1) {
            p.own->add_image(first, n_pos, pos, seq_id);
        }
    }
}

// Let all end where the shortest one does, behind which comes what was there
int32_t joint_drafter::level(llama_seq_id seq_id) {
    int32_t n = n_past(seq_id);
    for (bool is_level = false; !is_level;) {
        is_level = true;
        for (const part & p : parts_) {
            if (p.own->n_past(seq_id) > n) {
                p.own->truncate(n, seq_id, true);
            }
            is_level = is_level && p.own->n_past(seq_id) == n;
            n        = std::min(n, p.own->n_past(seq_id));
        }
    }
    return n;
}

int32_t joint_drafter::truncate(int32_t n_past, llama_seq_id seq_id, bool same_next) {
    for (const part & p : parts_) {
        p.own->truncate(n_past, seq_id, same_next);
    }
    return level(seq_id);
}

int32_t joint_drafter::copy(llama_seq_id src, llama_seq_id dst, int32_t n_past, bool same_next) {
    try {
        for (const part & p : parts_) {
            p.own->copy(src, dst, n_past, same_next);
        }
    } catch (...) {
        restart(0, dst);
        throw;
    }
    return level(dst);
}

void joint_drafter::restart(int32_t n_past, llama_seq_id seq_id) {
    for (const part & p : parts_) {
        p.own->restart(n_past, seq_id);
    }
}

// the number of bytes of each, and these
std::vector<uint8_t> joint_drafter::state_get(llama_seq_id seq_id) {
    std::vector<uint8_t> state;
    for (const part & p : parts_) {
        const std::vector<uint8_t> own = p.own->state_get(seq_id);
        const uint64_t             n   = own.size();
        state.insert(state.end(), reinterpret_cast<const uint8_t *>(&n), reinterpret_cast<const uint8_t *>(&n + 1));
        state.insert(state.end(), own.begin(), own.end());
    }
    return state;
}

void joint_drafter::state_set(const std::vector<uint8_t> & state, llama_seq_id seq_id) {
    std::vector<std::vector<uint8_t>> states;
    size_t                            at = 0;
    while (states.size() < parts_.size()) {
        uint64_t n = 0;
        if (state.size() - at < sizeof(n)) {
            break;
        }
        std::memcpy(&n, state.data() + at, sizeof(n));
        at += sizeof(n);
        if (n > state.size() - at) {
            break;
        }
        states.emplace_back(state.begin() + static_cast<std::ptrdiff_t>(at),
                            state.begin() + static_cast<std::ptrdiff_t>(at + n));
        at += n;
    }
    if (states.size() != parts_.size() || at != state.size()) {
        throw std::invalid_argument(
            format("the saved state of the draft is damaged, or was not made by %zu drafters", parts_.size()));
    }
    try {
        for (size_t i = 0; i < parts_.size(); ++i) {
            parts_[i].own->state_set(states[i], seq_id);
        }
    } catch (...) {
        restart(0, seq_id);
        throw;
    }
    level(seq_id);
}

void joint_drafter::set_noise(std::shared_ptr<const gumbel_noise> noise, llama_seq_id seq_id) {
    for (const part & p : parts_) {
        p.own->set_noise(noise, seq_id);
    }
}

void joint_drafter::set_rules(std::shared_ptr<grammar_lookahead> rules, llama_seq_id seq_id) {
    for (const part & p : parts_) {
        p.own->set_rules(rules, seq_id);
    }
}

void joint_drafter::leave_out(const std::vector<llama_token> & tokens) {
    for (const part & p : parts_) {
        p.own->leave_out(tokens);
    }
}

int64_t joint_drafter::t_graph_us() const {
    int64_t t_us = 0;
    for (const part & p : parts_) {
        t_us += p.own->t_graph_us();
    }
    return t_us;
}

drafter_stats joint_drafter::all_stats() const {
    drafter_stats total;
    for (const part & p : parts_) {
        const drafter_stats own = p.own->all_stats();
        total.t_process_us += own.t_process_us;
        total.t_propose_us += own.t_propose_us;
        total.n_propose += own.n_propose;
        total.n_steps += own.n_steps;
    }
    return total;
}

} // namespace eagle3
