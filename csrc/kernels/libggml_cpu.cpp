#include "kernels/libggml_cpu.h"

#include "system.h"

#include <cstdlib>
#include <cstring>
#include <typeinfo>

namespace eagle3::kernels {

template <class F>
static void find(F & function, const char * symbol) {
    function = reinterpret_cast<F>(find_loaded("ggml-cpu", symbol));
}

const libggml_cpu & libggml() {
    static const libggml_cpu found = [] {
        libggml_cpu functions;
        find(functions.extra_buffer_types, "_Z39ggml_backend_cpu_get_extra_buffer_typesv");
        find(functions.repack_buffer_type, "_Z35ggml_backend_cpu_repack_buffer_typev");
        find(functions.barrier, "ggml_barrier");
        find(functions.is_numa, "ggml_is_numa");
        return functions;
    }();
    return found;
}

// ggml chooses among tensor_traits<block, bytes, channels, type of rows> by the instruction sets of its build and of
// the processor. Only the name of the class tells which it chose: its type_info lies before its virtual functions.
interleaving repacked_as(const ggml_tensor * weight) {
    if (!weight->extra || weight->buffer->buft != libggml().repack_buffer_type()) {
        return {};
    }
    const std::type_info * type = (*static_cast<const std::type_info * const * const *>(weight->extra))[-1];
    const char *           name = type ? std::strstr(type->name(), "6repack13tensor_traitsI") : nullptr;
    const char *           at   = name ? std::strchr(name, 'L') : nullptr; // Ll8ELl4E: two integers
    if (!at) {
        return {};
    }
    char *        end     = nullptr;
    const int64_t n_bytes = std::strtol(at + 2, &end, 10);
    return std::strncmp(end, "EL", 2) == 0 ? interleaving{ n_bytes, std::strtol(end + 3, nullptr, 10) }
                                           : interleaving{};
}

} // namespace eagle3::kernels
