// The operations of the kernels' loops that differ between instruction sets: sums of products of bytes and of words.
// AVX-VNNI, and AVX-512-VNNI in vectors of 256 bits, add four products of bytes to a sum of 32 bits at once, where AVX2
// first adds two in 16 bits. ARM's dotprod adds four too, where NEON adds two.
//
// VNNI's instructions are written as assembly. Its intrinsics can be inlined only into functions that name that
// instruction set, so all loops and formats would have to be compiled again under other names.
#pragma once

#include "kernels/avx2.h"
#include "kernels/instruction_sets_arm.h"
#include "kernels/kernel.h"

#if defined(__x86_64__)
#include <cpuid.h>

#if defined(EAGLE3_AMX)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace eagle3::kernels::avx2 {

// The part that all sets of x86 share.
struct x86_set {
    static constexpr bool has_vnni      = false; // are four products of bytes added at once?
    static constexpr bool has_signed    = false; // may the weights be negative in that operation?
    static constexpr bool is_wide       = false; // are there loops in vectors of 512 bits?
    static constexpr bool has_tiles     = false; // are many rows multiplied by matrices?
    static constexpr bool has_matrices  = false; // are two rows multiplied at once?
    static constexpr bool has_lanes     = false; // can one lane of a row's values be multiplied by a whole vector?
    static constexpr bool scales_dwords = false; // are sums of 32 bits multiplied by scales, or of 16?

    // The sums of pairs of products of bytes, in 16 bits.
    template <bool is_signed>
    AVX2_INLINE static __m256i multiply_bytes(__m256i a, __m256i b) {
        return is_signed ? _mm256_maddubs_epi16(_mm256_abs_epi8(a), _mm256_sign_epi8(b, a))
                         : _mm256_maddubs_epi16(a, b);
    }

    // Adds the two lanes of each of eight channels. The channels are then in the order 0 1 4 5 2 3 6 7, ...
    AVX2_INLINE static __m256i fold(__m256i low, __m256i high) {
        const __m256 even = _mm256_shuffle_ps(_mm256_castsi256_ps(low), _mm256_castsi256_ps(high), 0x88);
        const __m256 odd  = _mm256_shuffle_ps(_mm256_castsi256_ps(low), _mm256_castsi256_ps(high), 0xdd);
        return _mm256_add_epi32(_mm256_castps_si256(even), _mm256_castps_si256(odd));
    }

    // ... which this undoes.
    AVX2_INLINE static __m256 unfold(__m256 v) {
        return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(v), 0xd8));
    }
};

struct plain_avx2 : x86_set {
    static constexpr const char * name = "avx2";

    static bool is_supported() { return avx2::is_supported(); }

    // Adds pairs of products of int16 to int32 sums.
    AVX2_INLINE static __m256i add_words(__m256i sum, __m256i a, __m256i b) {
        return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
    }
};

#ifdef EAGLE3_EMULATE_VNNI
// VNNI emulated by AVX2 gives the same numbers, to test its kernels on processors without it.

struct emulated_vnni : plain_avx2 {
    static constexpr bool has_vnni = true;

    // Adds four products of uint8 and int8 each to int32 sums.
    AVX2_INLINE static __m256i add_bytes(__m256i sum, __m256i a, __m256i b) {
        const __m256i even = _mm256_and_si256(a, _mm256_set1_epi16(0xff));
        const __m256i odd  = _mm256_srli_epi16(a, 8);
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(even, _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8)));
        return _mm256_add_epi32(sum, _mm256_madd_epi16(odd, _mm256_srai_epi16(b, 8)));
    }
};

struct avx_vnni : emulated_vnni {
    static constexpr const char * name = "avx_vnni";
};

struct avx512_vnni : emulated_vnni {
    static constexpr const char * name = "avx512_vnni";
};
#elif defined(EAGLE3_VNNI) // the assembler knows the instructions

struct avx_vnni : x86_set {
    static constexpr const char * name     = "avx_vnni";
    static constexpr bool         has_vnni = true;

    static bool is_supported() { // not all compilers' __builtin_cpu_supports know it
        unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
        return avx2::is_supported() && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax & 1 << 4);
    }

    AVX2_INLINE static __m256i add_bytes(__m256i sum, __m256i a, __m256i b) {
        asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
        return sum;
    }

    AVX2_INLINE static __m256i add_words(__m256i sum, __m256i a, __m256i b) {
        asm("%{vex%} vpdpwssd %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
        return sum;
    }
};

struct avx512_vnni : x86_set {
    static constexpr const char * name     = "avx512_vnni";
    static constexpr bool         has_vnni = true;
    static constexpr bool         is_wide  = true;

    static bool is_supported() {
        return avx2::is_supported() && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
    }

    AVX2_INLINE static __m256i add_bytes(__m256i sum, __m256i a, __m256i b) {
        asm("vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
        return sum;
    }

    AVX2_INLINE static __m256i add_words(__m256i sum, __m256i a, __m256i b) {
        asm("vpdpwssd %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
        return sum;
    }
};

#if defined(EAGLE3_AMX)
struct avx512_amx : avx512_vnni {
    static constexpr const char * name      = "avx512_amx";
    static constexpr bool         has_tiles = true;

    // Linux gives a process tiles when it asks for them (XFEATURE_XTILEDATA).
    static bool is_supported() {
        static const bool is_given = [] {
            constexpr unsigned tile_and_int8 = 1U << 24 | 1U << 25;

            unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
            return avx512_vnni::is_supported() && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) &&
                   (edx & tile_and_int8) == tile_and_int8 &&
                   syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18) == 0;
        }();
        return is_given;
    }
};
#endif
#endif

// The kernel of a set.
template <class Make, class Set>
kernel kernel_of(Make && make, Set set) {
    kernel made = make(set);
    made.n_rows = Set::has_tiles ? ROWS_TILED : Set::is_wide ? ROWS_TOGETHER_WIDE : ROWS_TOGETHER;
    return made;
}

// make(set) for each set, the fastest first. WITH_TILES: of products for which there are tiles.
template <bool WITH_TILES = false, class Make>
std::vector<kernel> by_instruction_sets(Make && make) {
    std::vector<kernel> made = {
#if defined(EAGLE3_VNNI) || defined(EAGLE3_EMULATE_VNNI)
        kernel_of(make, avx512_vnni{}),
        kernel_of(make, avx_vnni{}),
#endif
        kernel_of(make, plain_avx2{}),
    };
#if defined(EAGLE3_AMX)
    if constexpr (WITH_TILES) {
        made.insert(made.begin(), kernel_of(make, avx512_amx{}));
    }
#endif
    return made;
}

} // namespace eagle3::kernels::avx2
#endif
