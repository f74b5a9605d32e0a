#include "target/rollback.h"

#include "error.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

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
    // a state in several pieces, such as that of a sliding window, cannot stay on the device
    batch_flags_ = LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY | (n_swa_ == 0 ? LLAMA_STATE_SEQ_FLAGS_ON_DEVICE : 0);
}

size_t seq_rollback::n_state_bytes() const {
    return kind_ == rollback_kind::trim && n_swa_ == 0
               ? 0
               : llama_state_seq_get_size_ext(ctx_, seq_id_, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
}

void seq_rollback::begin(int32_t n_tokens, llama_pos pos, bool has_snapshots) {
    abort();
    // the first token is never rejected, as it was accepted in the step before
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
    // the newest snapshot is the state after the last token, so one token less than n_tokens can be taken back
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
    // forgets states that were saved after tokens that are removed now
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

// The bytes of state_get(): arrays, each after its length.
class writer {
  public:
    explicit writer(uint8_t * dst) : dst_(dst) {}

    template <typename T>
    static size_t size_of(size_t n) {
        return sizeof(uint64_t) + n * sizeof(T);
    }

    template <typename T>
    void put(const T * values, size_t n) {
        std::copy_n(reinterpret_cast<const uint8_t *>(values), n * sizeof(T), skip<T>(n));
    }

    // Where the caller must write an array.
    template <typename T>
    uint8_t * skip(size_t n) {
        const uint64_t n64 = n;
        memcpy(dst_, &n64, sizeof(n64));
        uint8_t * values = dst_ + sizeof(n64);
        dst_             = values + n * sizeof(T);
        return values;
    }

  private:
    uint8_t * dst_;
};

class reader {
  public:
    reader(const uint8_t * src, size_t size) : src_(src), n_left_(size) {}

    template <typename T>
    std::vector<T> get() {
        const auto [bytes, n] = next<T>();
        std::vector<T> values(n);
        std::copy_n(bytes, n * sizeof(T), reinterpret_cast<uint8_t *>(values.data()));
        return values;
    }

    // Where an array is, and its length.
    template <typename T>
    std::pair<const uint8_t *, size_t> next() {
        uint64_t n = 0;
        check(n_left_ >= sizeof(n));
        memcpy(&n, src_, sizeof(n));
        n_left_ -= sizeof(n);
        check(n <= n_left_ / sizeof(T));
        const uint8_t * values = src_ + sizeof(n);
        src_                   = values + n * sizeof(T);
        n_left_ -= n * sizeof(T);
        return { values, n };
    }

    bool at_end() const { return n_left_ == 0; }

  private:
    static void check(bool is_right) {
        if (!is_right) {
            throw std::invalid_argument("not a state of a sequence, or truncated");
        }
    }

    const uint8_t * src_;
    size_t          n_left_;
};

} // namespace

void seq_rollback::state_get(const allocator & allocate) {
    abort();
    const int32_t header[] = { static_cast<int32_t>(state_magic), memory_end() };
    const size_t  n_data   = n_bytes(LLAMA_STATE_SEQ_FLAGS_NONE);
    const size_t  n_replay = writer::size_of<llama_token>(replay_.size());
    writer        out(allocate(writer::size_of<int32_t>(2) + n_replay + writer::size_of<uint8_t>(n_data)));
    out.put(header, 2);
    out.put(replay_.data(), replay_.size());
    store(out.skip<uint8_t>(n_data), n_data, LLAMA_STATE_SEQ_FLAGS_NONE);
}

void seq_rollback::state_set(const uint8_t * src, size_t size) {
    reader     in(src, size);
    const auto header = in.get<int32_t>();
    if (header.size() != 2 || header[0] != static_cast<int32_t>(state_magic)) {
        throw std::invalid_argument("not a state of a sequence, or truncated");
    }
    std::vector<llama_token> replay = in.get<llama_token>();
    const auto [data, n_data]       = in.next<uint8_t>();
    if (!in.at_end()) {
        throw std::invalid_argument("not a state of a sequence: it has more bytes than its header counts");
    }
    reset();
    if (!restore(header[1], data, n_data, LLAMA_STATE_SEQ_FLAGS_NONE)) {
        clear_memory();
        throw context_full_error(format("no room in the context for the %d tokens of a saved sequence", header[1]));
    }
    replay_ = std::move(replay);
}

size_t seq_rollback::n_bytes(uint32_t flags) const {
    return memory_end() == 0 ? 0 : llama_state_seq_get_size_ext(ctx_, seq_id_, flags);
}

void seq_rollback::store(saved_state & state, uint32_t flags) {
    state.n_past = memory_end();
    state.data.resize(n_bytes(flags));
    store(state.data.data(), state.data.size(), flags);
}

void seq_rollback::store(uint8_t * dst, size_t size, uint32_t flags) {
    const bool is_empty = memory_end() == 0;
    if (is_empty ? size != 0 : size == 0 || llama_state_seq_get_data_ext(ctx_, dst, size, seq_id_, flags) != size) {
        throw error(format("llama.cpp could not save the state of sequence %d", seq_id_));
    }
}

bool seq_rollback::restore(int32_t n_past, const uint8_t * src, size_t size, uint32_t flags) {
    n_back_    = 0;
    is_before_ = false;
    if (n_past == 0) {
        clear_memory();
        return true;
    }
    // attention layers were not saved: their cells after that position are removed
    llama_memory_t  memory  = llama_get_memory(ctx_);
    const bool      is_read = llama_state_seq_set_data_ext(ctx_, src, size, seq_id_, flags) == size;
    const llama_pos first   = llama_memory_seq_pos_min(memory, seq_id_);
    const llama_pos last    = llama_memory_seq_pos_max(memory, seq_id_);
    if (first < -1 || last == std::numeric_limits<llama_pos>::max()) { // only clearing all removes such cells
        throw error(format("a saved state is damaged: it has positions %d to %d", first, last));
    }
    return is_read && llama_memory_seq_rm(memory, seq_id_, n_past, -1) &&
           llama_memory_seq_pos_max(memory, seq_id_) == n_past - 1;
}

// Removes what the memory holds and what it could go back to.
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
