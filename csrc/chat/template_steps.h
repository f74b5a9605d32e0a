#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace eagle3::chat {

// Steps that a template may take while llama.cpp analyzes it with small conversations: some seconds. A conversation of
// thousands of messages may take any number, since some templates look back from each.
constexpr size_t ANALYSIS_STEPS_MAX = 5'000'000;
constexpr size_t TEMPLATE_DEPTH_MAX = 5'000; // statements and calls within each other

// Of a thread, which renders or analyzes one template (big_stack.h).
inline thread_local size_t template_steps_left = SIZE_MAX;
inline thread_local size_t template_depth      = 0;

inline void check_template_steps() {
    if (template_steps_left == 0) {
        throw std::runtime_error("the chat template calls itself without end, or goes on without end");
    }
}

// A step of a template: cmake/LlamaChat.cmake has llama.cpp's Jinja make one.
class template_step {
  public:
    template_step() {
        if (template_depth >= TEMPLATE_DEPTH_MAX) {
            template_steps_left = 0;
        }
        check_template_steps();
        --template_steps_left;
        ++template_depth;
    }

    ~template_step() { --template_depth; }

    template_step(const template_step &)             = delete;
    template_step & operator=(const template_step &) = delete;
};

} // namespace eagle3::chat
