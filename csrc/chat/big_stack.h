#pragma once

#include "own_stack.h"

namespace eagle3::chat {

// llama.cpp's parsers and templates recurse once for each level of nesting. A thread of Python may have only half a
// megabyte of stack; this one has enough for MAX_NESTING levels (measured: less than 3 KiB each).
constexpr size_t MAX_NESTING    = 10000;
constexpr size_t SMALL_NESTING  = 100; // for up to so many levels any stack is enough
constexpr size_t BIG_STACK_SIZE = 64 << 20;

template <typename F>
void on_big_stack(F && work) {
    on_own_stack(BIG_STACK_SIZE, work);
}

} // namespace eagle3::chat
