// Q8_0: a scale, then 32 int8 values.
#include "kernels/blocks.h"
#include "kernels/formats.h"

#if defined(__x86_64__)

namespace eagle3::kernels {

namespace {

using namespace avx2;

struct q8_0 {
    static constexpr int64_t block_bytes = 34;
    static constexpr bool    octets      = false;
    static constexpr bool    is_signed   = true;
    static constexpr int     largest     = 128;
    using sums                           = offset_sums<0>;

    AVX2_INLINE static void unpack(const uint8_t * p, int64_t b, size_t stride, unpacked & w) {
        p += b * block_bytes;
        w.d = load_halves(p, stride);
        load_transposed(p + 2, stride, w.q);
        load_transposed(p + 18, stride, w.q + 4);
    }
};

} // namespace

const std::vector<kernel> q8_0_kernels = blocks_kernels<q8_0>("q8_0", GGML_TYPE_Q8_0);

} // namespace eagle3::kernels
#endif
