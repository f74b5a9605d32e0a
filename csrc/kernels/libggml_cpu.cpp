#include "kernels/libggml_cpu.h"

#include <dlfcn.h>

namespace eagle3::kernels {

template <class F>
static void find(void * lib, F & function, const char * symbol) {
    function = reinterpret_cast<F>(dlsym(lib, symbol));
}

const libggml_cpu & libggml() {
    static const libggml_cpu found = [] {
        libggml_cpu functions;
        if (void * lib = dlopen("libggml-cpu.so.0", RTLD_NOW | RTLD_NOLOAD)) {
            find(lib, functions.extra_buffer_types, "_Z39ggml_backend_cpu_get_extra_buffer_typesv");
            find(lib, functions.repack_buffer_type, "_Z35ggml_backend_cpu_repack_buffer_typev");
            find(lib, functions.barrier, "ggml_barrier");
        }
        return functions;
    }();
    return found;
}

} // namespace eagle3::kernels
