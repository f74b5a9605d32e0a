// Q4_0: a scale, then 32 values below 16 that stand for 8 less; as the file has it, and repacked (block_q4_0x8 of
// ggml/src/ggml-cpu/repack.cpp, where all values' highest bits are flipped).
#include "kernels/blocks.h"
#include "kernels/formats.h"

#if defined(__x86_64__)

namespace eagle3::kernels {

namespace {

using namespace avx2;

struct q4_0 {
    static constexpr int64_t block_bytes = 18;
    static constexpr bool    octets      = false;
    static constexpr bool    is_signed   = false;
    static constexpr int     largest     = 15;
    using sums                           = offset_sums<8>;

    AVX2_INLINE static void unpack(const uint8_t * p, int64_t b, size_t stride, unpacked & w) {
        p += b * block_bytes;
        w.d = load_halves(p, stride);
        load_nibbles(p + 2, stride, w.q);
    }
};

struct q4_0x8 : q4_0 {
    static constexpr bool octets    = true;
    static constexpr int  values_at = 16;
    static constexpr int  flip      = 0x88;
    static constexpr bool has_table = false;

    AVX2_INLINE static __m256 scales(const uint8_t * p) { return _mm256_cvtph_ps(load128(p)); }
};

} // namespace

const std::vector<kernel> q4_0x8_kernels = blocks_kernels<q4_0x8>("q4_0x8", GGML_TYPE_Q4_0);
const std::vector<kernel> q4_0_kernels   = blocks_kernels<q4_0>("q4_0", GGML_TYPE_Q4_0);

} // namespace eagle3::kernels
#endif
