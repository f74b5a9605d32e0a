// IQ4_NL: a scale, then 32 indices of a table; as the file has it, and repacked (block_iq4_nlx8 of
// ggml/src/ggml-cpu/repack.cpp).
#include "kernels/blocks_avx2.h"
#include "kernels/legacy_avx2.h"

#if defined(__x86_64__)

namespace eagle3::kernels {

namespace {

using namespace avx2;

AVX2_INLINE __m128i table() {
    return _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
}

struct iq4_nl {
    static constexpr int64_t block_bytes = 18;
    static constexpr bool    octets      = false;
    static constexpr bool    is_signed   = true;
    static constexpr int     largest     = 127;
    using sums                           = offset_sums<0>;

    AVX2_INLINE static void unpack(const uint8_t * p, size_t stride, unpacked & w) {
        w.d = load_halves(p, stride);
        load_nibbles(p + 2, stride, w.q);
        look_up(table(), w.q);
    }
};

struct iq4_nlx8 : iq4_nl {
    static constexpr bool octets = true;

    AVX2_INLINE static void unpack(const uint8_t * p, size_t /*stride*/, unpacked & w) {
        w.d = _mm256_cvtph_ps(load128(p));
        load_nibbles_octets(p + 16, _mm256_setzero_si256(), w.q);
        look_up(table(), w.q);
    }
};

} // namespace

const kernel iq4_nlx8_avx2 = blocks_kernel<iq4_nlx8>("iq4_nlx8/avx2", GGML_TYPE_IQ4_NL);
const kernel iq4_nl_avx2   = blocks_kernel<iq4_nl>("iq4_nl/avx2", GGML_TYPE_IQ4_NL);

} // namespace eagle3::kernels
#endif
