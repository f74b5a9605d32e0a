#include "target/blank_leaves.h"

#include "ggml-backend.h"
#include "ggml.h"

#include <algorithm>
#include <cstring>

namespace eagle3 {

// Looks at the name that ggml gives to leaves without one: copies between devices are leaves without the flag too.
static bool is_blank(const ggml_tensor * t) {
    return t->op == GGML_OP_NONE && t->view_src == nullptr && t->buffer != nullptr &&
           (t->flags & GGML_TENSOR_FLAG_INPUT) == 0 && std::strncmp(t->name, "leaf_", 5) == 0 &&
           ggml_backend_buffer_get_usage(t->buffer) == GGML_BACKEND_BUFFER_USAGE_COMPUTE;
}

bool blank_leaves(ggml_tensor * node, bool ask, void * /*user_data*/) {
    static const char zeros[4096] = {};
    for (int i = 0; ask && i < GGML_MAX_SRC; ++i) {
        ggml_tensor * src = node->src[i];
        if (src == nullptr || !is_blank(src)) {
            continue;
        }
        // not every backend can memset
        for (size_t at = 0, n = ggml_nbytes(src); at < n; at += sizeof(zeros)) {
            ggml_backend_tensor_set(src, zeros, at, std::min(sizeof(zeros), n - at));
        }
    }
    return false;
}

} // namespace eagle3
