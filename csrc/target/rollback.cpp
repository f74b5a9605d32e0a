#include "target/rollback.h"

#include "error.h"

#include <algorithm>

namespace eagle3 {

const char * to_string(rollback_kind kind) {
    switch (kind) {
        case rollback_kind::trim: return "trim";
        case rollback_kind::snapshots: return "snapshots";
        case rollback_kind::checkpoint: return "checkpoint";
    }
    return "";
}

seq_rollback::seq_rollback(llama_context * ctx, llama_seq_id seq_id) : ctx_(ctx), seq_id_(seq_id) {
    const llama_model * model     = llama_get_model(ctx);
    const bool          recurrent = llama_model_is_recurrent(model) || llama_model_is_hybrid(model);

    n_swa_    = llama_model_n_swa(model);
    n_rs_seq_ = static_cast<int32_t>(llama_n_rs_seq(ctx));
    kind_     = !recurrent ? rollback_kind::trim : n_rs_seq_ > 0 ? rollback_kind::snapshots : rollback_kind::checkpoint;
    // a state in several pieces, as that of a sliding window, cannot stay on the device
    batch_flags_ = LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY | (n_swa_ == 0 ? LLAMA_STATE_SEQ_FLAGS_ON_DEVICE : 0);
}

size_t seq_rollback::n_state_bytes() const {
    return kind_ == rollback_kind::trim && n_swa_ == 0
               ? 0
               : llama_state_seq_get_size_ext(ctx_, seq_id_, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
}

void seq_rollback::begin(int32_t n_tokens, llama_pos pos, bool has_snapshots) {
    abort();
    // the first token is never rejected: it is the last one that was accepted
    const int32_t n_back = n_tokens - 1;
    has_before_          = kind_ != rollback_kind::trim && n_back > (has_snapshots ? n_rs_seq_ : 0);
    if (has_before_ && !(is_before_ && before_.n_past == memory_end())) {
        store(before_, batch_flags_);
        is_before_ = true;
    }
    n_past_   = pos;
    n_tokens_ = 0;
    open_     = true;
}

void seq_rollback::decoded(const std::vector<llama_token> & tokens) {
    if (open_) {
        n_tokens_ = static_cast<int32_t>(tokens.size() - replay_.size());
        batch_    = tokens;
    }
    replay_.clear();
    is_before_ = false;
    // the state after the last token of a batch is the newest of its snapshots, so one less can be taken back
    n_back_    = std::min(n_rs_seq_, static_cast<int32_t>(tokens.size()) - 1);
}

void seq_rollback::commit(int32_t n_accepted) {
    if (!open_) {
        throw error("no batch is open");
    }
    if (n_accepted < 0 || n_accepted > n_tokens_) {
        throw std::invalid_argument(format("%d tokens of the batch are to be kept, it has %d", n_accepted, n_tokens_));
    }
    open_ = false;
    if (n_accepted == n_tokens_ && n_tokens_ > 0) {
        return;
    }
    const int32_t n_past = n_past_ + n_accepted;
    if (kind_ == rollback_kind::trim) {
        llama_memory_seq_rm(llama_get_memory(ctx_), seq_id_, n_past, -1);
        return;
    }
    if (n_tokens_ == 0 && this->n_past() <= n_past) {
        return; // nothing was decoded
    }
    if (replay_.empty() && trim(n_past)) {
        return;
    }
    if (has_before_ && restore(before_, batch_flags_)) {
        is_before_ = true;
        if (n_tokens_ > 0) {
            batch_.resize(batch_.size() - n_tokens_ + n_accepted);
            replay_.swap(batch_);
        }
    } else if (replay_.empty()) {
        truncate(n_past);
    } else {
        reset(); // it is not known how much of the replay was decoded
    }
}

void seq_rollback::abort() {
    if (open_) {
        commit(0);
    }
}

void seq_rollback::failed(llama_pos first) {
    n_back_ = 0; // the snapshots may be those of the batch that failed
    if (open_) {
        abort();
    } else if (!llama_memory_seq_rm(llama_get_memory(ctx_), seq_id_, first, -1)) {
        reset();
    }
}

bool seq_rollback::can_trim(int32_t n_past) const {
    if (n_past == 0) {
        return true;
    }
    if (kind_ != rollback_kind::trim) {
        return memory_end() - n_past <= n_back_;
    }
    // a sliding-window cache drops what has left the window, and the window moves back with n_past
    return n_swa_ == 0 || llama_memory_seq_pos_min(llama_get_memory(ctx_), seq_id_) <= std::max(0, n_past - n_swa_);
}

bool seq_rollback::trim(int32_t n_past) {
    if (!can_trim(n_past) || !llama_memory_seq_rm(llama_get_memory(ctx_), seq_id_, n_past, -1)) {
        return false;
    }
    n_back_    = 0;
    is_before_ = false;
    return true;
}

int32_t seq_rollback::truncate(int32_t n_past) {
    open_                = false;
    const int32_t n_have = memory_end();
    if (n_past == 0) {
        reset();
        return 0;
    }
    if (n_past >= n_have) {
        replay_.resize(std::min<size_t>(replay_.size(), n_past - n_have));
        return this->n_past();
    }
    replay_.clear();
    // what was saved of tokens that go now
    saved_.erase(std::remove_if(saved_.begin(), saved_.end(),
                                [&](const auto & weak) {
                                    const saved_state_ptr state = weak.lock();
                                    return !state || state->n_past > n_past;
                                }),
                 saved_.end());
    if (trim(n_past)) {
        return n_past;
    }
    while (const saved_state_ptr state = last_saved(n_past)) {
        if (restore(*state, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY)) {
            return state->n_past;
        }
        n_past = state->n_past - 1;
    }
    clear_memory();
    return 0;
}

saved_state_ptr seq_rollback::save() {
    const int32_t n_have = memory_end();
    if ((kind_ == rollback_kind::trim && n_swa_ == 0) || !replay_.empty() || n_have == 0) {
        return nullptr;
    }
    auto state = std::make_shared<saved_state>();
    store(*state, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
    attach({ state });
    return state;
}

void seq_rollback::attach(const std::vector<saved_state_ptr> & states) {
    std::vector<saved_state_ptr> known = states;
    for (const auto & weak : saved_) {
        const saved_state_ptr state = weak.lock();
        if (state && std::none_of(states.begin(), states.end(),
                                  [&](const auto & other) { return other->n_past == state->n_past; })) {
            known.push_back(state);
        }
    }
    std::sort(known.begin(), known.end(), [](const auto & a, const auto & b) { return a->n_past < b->n_past; });
    saved_.assign(known.begin(), known.end());
}

saved_state_ptr seq_rollback::last_saved(int32_t n_past) const {
    for (auto it = saved_.rbegin(); it != saved_.rend(); ++it) {
        const saved_state_ptr state = it->lock();
        if (state && state->n_past <= n_past) {
            return state;
        }
    }
    return nullptr;
}

bool seq_rollback::continue_from(const saved_state_ptr & state) {
    saved_.assign({ state });
    if (restore(*state, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY)) {
        return true;
    }
    reset();
    return false;
}

int32_t seq_rollback::n_past_min() const {
    if (kind_ != rollback_kind::trim) {
        return std::max(1, memory_end() - n_back_);
    }
    const llama_pos first = n_swa_ == 0 ? 0 : llama_memory_seq_pos_min(llama_get_memory(ctx_), seq_id_);
    return first <= 0 ? 1 : first + n_swa_;
}

namespace {

constexpr uint32_t state_magic = 0x32545345; // "EST2"

template <typename T>
void put(std::vector<uint8_t> & bytes, const T * values, size_t n) {
    const uint64_t n64   = n;
    const auto     count = reinterpret_cast<const uint8_t *>(&n64);
    const auto     data  = reinterpret_cast<const uint8_t *>(values);
    bytes.insert(bytes.end(), count, count + sizeof(n64));
    bytes.insert(bytes.end(), data, data + n * sizeof(T));
}

// what put() wrote
class reader {
  public:
    explicit reader(const std::vector<uint8_t> & bytes) : bytes(bytes) {}

    template <typename T>
    std::vector<T> get() {
        uint64_t n = 0;
        read(&n, sizeof(n));
        if (n > (bytes.size() - at) / sizeof(T)) {
            throw std::invalid_argument("not a state of a sequence, or truncated");
        }
        std::vector<T> values(n);
        read(values.data(), n * sizeof(T));
        return values;
    }

    bool at_end() const { return at == bytes.size(); }

  private:
    void read(void * dst, size_t n) {
        if (n > bytes.size() - at) {
            throw std::invalid_argument("not a state of a sequence, or truncated");
        }
        std::copy_n(bytes.data() + at, n, static_cast<uint8_t *>(dst));
        at += n;
    }

    const std::vector<uint8_t> & bytes;
    size_t                       at = 0;
};

} // namespace

std::vector<uint8_t> seq_rollback::state_get() {
    abort();
    saved_state now;
    store(now, LLAMA_STATE_SEQ_FLAGS_NONE);
    std::vector<uint8_t> bytes;
    const int32_t        header[] = { static_cast<int32_t>(state_magic), now.n_past };
    put(bytes, header, 2);
    put(bytes, replay_.data(), replay_.size());
    put(bytes, now.data.data(), now.data.size());
    return bytes;
}

void seq_rollback::state_set(const std::vector<uint8_t> & state) {
    reader     in(state);
    const auto header = in.get<int32_t>();
    if (header.size() != 2 || header[0] != static_cast<int32_t>(state_magic)) {
        throw std::invalid_argument("not a state of a sequence, or truncated");
    }
    std::vector<llama_token> replay = in.get<llama_token>();
    const saved_state        now    = { header[1], in.get<uint8_t>() };
    if (!in.at_end()) {
        throw std::invalid_argument("not a state of a sequence: it has more bytes than its header counts");
    }
    reset();
    if (!restore(now, LLAMA_STATE_SEQ_FLAGS_NONE)) {
        clear_memory();
        throw context_full_error(format("no room in the context for the %d tokens of a saved sequence", now.n_past));
    }
    replay_ = std::move(replay);
}

void seq_rollback::store(saved_state & state, uint32_t flags) {
    state.n_past = memory_end();
    if (state.n_past == 0) {
        return;
    }
    state.data.resize(llama_state_seq_get_size_ext(ctx_, seq_id_, flags));
    if (state.data.empty() ||
        llama_state_seq_get_data_ext(ctx_, state.data.data(), state.data.size(), seq_id_, flags) != state.data.size()) {
        throw error(format("llama.cpp could not save the state of sequence %d", seq_id_));
    }
}

bool seq_rollback::restore(const saved_state & state, uint32_t flags) {
    n_back_    = 0;
    is_before_ = false;
    if (state.n_past == 0) {
        clear_memory();
        return true;
    }
    // attention layers were not saved: what they have beyond that position goes
    llama_memory_t memory = llama_get_memory(ctx_);
    return llama_state_seq_set_data_ext(ctx_, state.data.data(), state.data.size(), seq_id_, flags) ==
               state.data.size() &&
           llama_memory_seq_rm(memory, seq_id_, state.n_past, -1) &&
           llama_memory_seq_pos_max(memory, seq_id_) == state.n_past - 1;
}

// what the memory holds, and what it could go back to
void seq_rollback::clear_memory() {
    llama_memory_seq_rm(llama_get_memory(ctx_), seq_id_, 0, -1);
    n_back_    = 0;
    is_before_ = false;
    saved_.clear();
}

void seq_rollback::reset() {
    clear_memory();
    replay_.clear();
    open_ = false;
}

} // namespace eagle3
