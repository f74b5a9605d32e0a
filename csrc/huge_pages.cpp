#include "huge_pages.h"

#include "ggml-backend-impl.h"

#include <cstddef>
#include <cstdint>
#include <mutex>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace eagle3 {

#ifdef __linux__
namespace {

constexpr size_t n_page  = size_t{ 2 } << 20;
constexpr size_t n_large = 4 * n_page;

decltype(ggml_backend_buffer_type_i::alloc_buffer) alloc_buffer = nullptr; // ggml's own

// Nothing has been written to the memory yet, so its first use gets whole pages.
ggml_backend_buffer_t alloc_advised(ggml_backend_buffer_type_t type, size_t size) {
    ggml_backend_buffer_t buffer = alloc_buffer(type, size);
    if (buffer != nullptr && size >= n_large) {
        const auto begin = reinterpret_cast<uintptr_t>(ggml_backend_buffer_get_base(buffer));
        const auto first = (begin + n_page - 1) / n_page * n_page;
        const auto end   = begin + size;
        madvise(reinterpret_cast<void *>(first), (end - first) / n_page * n_page, MADV_HUGEPAGE);
    }
    return buffer;
}

} // namespace

void use_huge_pages() {
    static std::once_flag done;
    std::call_once(done, [] {
        ggml_backend_buffer_type_i & type =
            ggml_backend_cpu_buffer_type()->iface; // repacked weights allocate by it too
        alloc_buffer      = type.alloc_buffer;
        type.alloc_buffer = alloc_advised;
    });
}
#else
void use_huge_pages() {}
#endif

} // namespace eagle3
