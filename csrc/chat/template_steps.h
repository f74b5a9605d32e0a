#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace eagle3::chat {

// Steps that a template may take while llama.cpp analyzes it with small conversations: some seconds; and for a
// conversation: a minute, which thousands of messages may need. Copied bytes count too, so that memory has a bound.
constexpr size_t ANALYSIS_STEPS_MAX = 5'000'000;
constexpr size_t RENDER_STEPS_MAX   = 300'000'000;
constexpr size_t TEMPLATE_DEPTH_MAX = 5'000; // statements and calls within each other

// Of a thread, which renders or analyzes one template (big_stack.h).
inline thread_local size_t template_steps_left = SIZE_MAX;
inline thread_local size_t template_depth      = 0;

inline void take_template_steps(size_t n_bytes = 0) {
    const size_t n_steps = 1 + n_bytes / 8;
    if (template_steps_left < n_steps || template_depth >= TEMPLATE_DEPTH_MAX) {
        template_steps_left = 0; // all later ones fail too: llama.cpp goes on after errors
        throw std::runtime_error("the chat template calls itself without end, or goes on without end");
    }
    template_steps_left -= n_steps;
}

// A step of a template: cmake/LlamaChat.cmake has llama.cpp's Jinja make one.
class template_step {
  public:
    template_step() {
        take_template_steps();
        ++template_depth;
    }

    ~template_step() { --template_depth; }

    template_step(const template_step &) = delete;
};

} // namespace eagle3::chat
