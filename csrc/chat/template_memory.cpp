// operator new of this module alone: what a template makes costs steps (template_steps.h), and what it holds is
// bounded. prelude.h has the functions of std::string compiled into the module, since those of libstdc++ call another
// one.

#include "template_steps.h"

#include <cstdlib>
#include <new>

#ifdef __APPLE__
#include <malloc/malloc.h>
#else
#include <malloc.h>
#endif

namespace {

int64_t size_of(void * memory) {
#if defined(_WIN32)
    return static_cast<int64_t>(_msize(memory));
#elif defined(__APPLE__)
    return static_cast<int64_t>(malloc_size(memory));
#else
    return static_cast<int64_t>(malloc_usable_size(memory));
#endif
}

} // namespace

void * operator new(size_t size) {
    auto & left = eagle3::chat::template_left;
    if (left.steps_left > 0) { // one error is enough: what handles it needs memory
        eagle3::chat::take_template_steps(size);
        if (left.bytes_left < 0 || size > static_cast<size_t>(left.bytes_left)) {
            left.reached    = eagle3::chat::template_limit::bytes;
            left.steps_left = 0;
            throw std::bad_alloc();
        }
    }
    void * memory = std::malloc(size > 0 ? size : 1);
    if (!memory) {
        throw std::bad_alloc();
    }
    left.bytes_left -= size_of(memory);
    return memory;
}

void operator delete(void * memory) noexcept {
    if (memory) {
        eagle3::chat::template_left.bytes_left += size_of(memory);
        std::free(memory);
    }
}

void operator delete(void * memory, size_t) noexcept {
    operator delete(memory);
}
