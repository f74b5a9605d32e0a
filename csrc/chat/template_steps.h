#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <utility>

namespace eagle3::chat {

// Steps that a template may take while llama.cpp analyzes it with small conversations, half a second; and for a
// conversation, some twenty: a bound that grows with the messages would be none for a template that is slow. By what
// 200 and 2,000 messages took, 5,000 of 500 bytes take up to 30 million steps in templates that read each message once,
// and some 280 million in Reka's, which copies the whole text for each. Gemma 4's first looks back to the beginning
// from each message: 136 n^2 steps, so 1,480 messages are within the bound, and 5,000 would take five minutes.
constexpr size_t  ANALYSIS_STEPS_MAX = 5'000'000;
constexpr size_t  RENDER_STEPS_MAX   = 300'000'000;
constexpr int64_t TEMPLATE_BYTES_MAX = 512 << 20; // of a text and all values at one time
constexpr size_t  TEMPLATE_DEPTH_MAX = 5'000;     // statements and calls within each other

enum class template_limit { steps, bytes, depth };

// A template takes too long, or too much memory: it would again, for the same conversation in another form.
struct template_limit_error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Of a thread, which renders or analyzes one template (big_stack.h); other threads have no bounds.
struct template_budget {
    size_t         steps_left = SIZE_MAX; // 0: nothing is counted any more
    int64_t        bytes_left = INT64_MAX / 2;
    size_t         depth      = 0;
    template_limit reached    = template_limit::steps; // what it had too few of
};

inline thread_local template_budget template_left;

// Work on so many bytes: copying 256 takes as long as a step.
inline void take_template_steps(size_t n_bytes = 0) {
    const size_t n_steps = 1 + n_bytes / 256;
    const bool   is_deep = template_left.depth >= TEMPLATE_DEPTH_MAX;
    if (template_left.steps_left < n_steps || is_deep) {
        if (is_deep && template_left.steps_left > 0) {
            template_left.reached = template_limit::depth;
        }
        template_left.steps_left = 0; // all later ones fail too: llama.cpp goes on after errors
        throw std::runtime_error("the chat template takes too many steps");
    }
    template_left.steps_left -= n_steps;
}

// A step of a template: cmake/LlamaChat.cmake has llama.cpp's Jinja make one.
class template_step {
  public:
    template_step() {
        take_template_steps();
        ++template_left.depth;
    }

    ~template_step() { --template_left.depth; }

    template_step(const template_step &) = delete;
};

// Memory is given without a limit while this lives.
class template_rest {
  public:
    template_rest() = default;

    ~template_rest() { template_left.steps_left = steps_left_; }

    template_rest(const template_rest &) = delete;

  private:
    size_t steps_left_ = std::exchange(template_left.steps_left, 0);
};

// A container for destructors, in which an error would end the process: cmake/LlamaChat.cmake has those of JSON use it.
template <typename T>
class without_limit : template_rest, public T {};

} // namespace eagle3::chat
