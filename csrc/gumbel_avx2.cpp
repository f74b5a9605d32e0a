#include "gumbel_race.h"
#include "kernels/avx2.h"

#if defined(__x86_64__)

namespace eagle3 {

namespace {

using kernels::avx2::load256;

constexpr size_t n_chunk = 32; // candidates
constexpr int    n_side  = 4;  // vectors that are computed side by side, since each round waits for the one before

// exp(x) for x <= 0, with a relative error of 2e-7; 0 if the result would be denormal.
AVX2_INLINE __m256 exp_vector(__m256 x) {
    const __m256 log2_e = _mm256_set1_ps(1.44269504f);
    const __m256 n      = _mm256_round_ps(_mm256_mul_ps(x, log2_e), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256       r      = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
    r                   = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
    __m256 y            = _mm256_set1_ps(1.9875691500e-4f); // Cephes' expf
    for (const float c : { 1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f }) {
        y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(c));
    }
    y                   = _mm256_add_ps(_mm256_fmadd_ps(_mm256_mul_ps(y, r), r, r), _mm256_set1_ps(1.0f));
    const __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_and_ps(_mm256_mul_ps(y, _mm256_castsi256_ps(power)),
                         _mm256_cmp_ps(x, _mm256_set1_ps(-87.0f), _CMP_GE_OQ));
}

// Computes blocks of Philox whose counters differ only in their first words, and returns words 0 and 2 of each: four in
// a vector, in the lower halves of 64 bits. The upper halves are not used.
AVX2_INLINE void philox(const gumbel_race & race, __m256i (&counters)[n_side], __m256i (&words2)[n_side]) {
    const __m256i m0 = _mm256_set1_epi64x(0xD2511F53), m1 = _mm256_set1_epi64x(0xCD9E8D57);
    __m256i       c1[n_side], c3[n_side];
    for (int v = 0; v < n_side; ++v) {
        c1[v]     = _mm256_set1_epi64x(race.noise.position);
        words2[v] = _mm256_set1_epi64x(race.attempt);
        c3[v]     = _mm256_setzero_si256();
    }
    uint32_t k0 = race.noise.seed, k1 = 0;
    for (int i = 0; i < 10; ++i) {
        const __m256i key0 = _mm256_set1_epi64x(k0), key1 = _mm256_set1_epi64x(k1);
        for (int v = 0; v < n_side; ++v) {
            const __m256i a = _mm256_mul_epu32(counters[v], m0), b = _mm256_mul_epu32(words2[v], m1);
            counters[v] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(b, 32), c1[v]), key0);
            words2[v]   = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(a, 32), c3[v]), key1);
            c1[v]       = b;
            c3[v]       = a;
        }
        k0 += 0x9E3779B9;
        k1 += 0xBB67AE85;
    }
}

// Are the ids consecutive, beginning with an even one, so that pairs share a block?
AVX2_INLINE bool is_run(const int32_t * ids) {
    __m256i expected = _mm256_add_epi32(_mm256_set1_epi32(ids[0]), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    __m256i same     = _mm256_set1_epi32(ids[0] % 2 - 1);
    for (size_t j = 0; j < n_chunk; j += 8) {
        same     = _mm256_and_si256(same, _mm256_cmpeq_epi32(load256(ids + j), expected));
        expected = _mm256_add_epi32(expected, _mm256_set1_epi32(8));
    }
    return _mm256_movemask_epi8(same) == -1;
}

// The first word of each candidate's uniform number.
AVX2_INLINE void first_words(const int32_t * ids, const gumbel_race & race, uint32_t * first) {
    __m256i words0[n_side], words2[n_side];
    if (is_run(ids)) {
        for (int v = 0; v < n_side; ++v) {
            const int32_t block = ids[0] / 2 + 4 * v;
            words0[v]           = _mm256_setr_epi64x(block, block + 1, block + 2, block + 3);
        }
        philox(race, words0, words2);
        for (int v = 0; v < n_side; ++v) {
            _mm256_storeu_si256(reinterpret_cast<__m256i *>(first + 8 * v),
                                _mm256_blend_epi32(words0[v], _mm256_slli_epi64(words2[v], 32), 0xAA));
        }
        return;
    }
    for (size_t j = 0; j < n_chunk; j += 4 * n_side) {
        __m256i is_odd[n_side];
        for (int v = 0; v < n_side; ++v) {
            const __m256i id = _mm256_cvtepi32_epi64(kernels::avx2::load128(ids + j + 4 * v));
            is_odd[v]        = _mm256_slli_epi64(id, 63);
            words0[v]        = _mm256_srli_epi64(id, 1);
        }
        philox(race, words0, words2);
        for (int v = 0; v < n_side; ++v) {
            const __m256i words = _mm256_castpd_si256(_mm256_blendv_pd(
                _mm256_castsi256_pd(words0[v]), _mm256_castsi256_pd(words2[v]), _mm256_castsi256_pd(is_odd[v])));
            _mm_storeu_si128(
                reinterpret_cast<__m128i *>(first + j + 4 * v),
                _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(words, _mm256_setr_epi32(0, 2, 4, 6, 0, 0, 0, 0))));
        }
    }
}

AVX2 size_t enter(gumbel_race & race, llama_token_data * data, size_t n) {
    constexpr float least = 0x1p-53f; // of all uniform numbers

    const __m256 max_l = _mm256_set1_ps(race.max_l);

    size_t i = 0;
    for (; i + n_chunk <= n; i += n_chunk) {
        int32_t  ids[n_chunk];
        float    p[n_chunk];
        uint32_t words[n_chunk];
        for (size_t j = 0; j < n_chunk; ++j) {
            ids[j] = data[i + j].id;
            p[j]   = data[i + j].logit;
        }
        __m256 sum = _mm256_setzero_ps(), most = sum;
        for (size_t j = 0; j < n_chunk; j += 8) {
            const __m256 e = exp_vector(_mm256_sub_ps(_mm256_loadu_ps(p + j), max_l));
            _mm256_storeu_ps(p + j, e);
            sum  = _mm256_add_ps(sum, e);
            most = _mm256_max_ps(most, e);
        }
        race.sum += kernels::avx2::sum(sum);
        for (size_t j = 0; j < n_chunk; ++j) {
            data[i + j].p = p[j];
        }
        // a little more than the best so far: p is rounded
        const __m256 best = _mm256_set1_ps(static_cast<float>(race.best * 1.00001));
        if (_mm256_movemask_ps(_mm256_cmp_ps(_mm256_mul_ps(most, best), _mm256_set1_ps(least), _CMP_GT_OQ)) == 0) {
            continue;
        }
        first_words(ids, race, words);
        for (size_t j = 0; j < n_chunk; j += 8) {
            // its first 24 bits, which are no more than it is
            const __m256 u =
                _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_srli_epi32(load256(words + j), 8)), _mm256_set1_ps(0x1p-24f));
            const __m256 e = _mm256_loadu_ps(p + j);
            for (int wins = _mm256_movemask_ps(_mm256_cmp_ps(u, _mm256_mul_ps(e, best), _CMP_LT_OQ)); wins != 0;
                 wins &= wins - 1) {
                const size_t             k         = i + j + __builtin_ctz(wins);
                const llama_token_data & candidate = data[k];
                race.enter(static_cast<int64_t>(k), std::exp(candidate.logit - race.max_l),
                           gumbel_noise::uniform(race.noise.words(candidate.id, 0, race.attempt), candidate.id));
            }
        }
    }
    return i;
}

} // namespace

size_t enter_by_avx2(gumbel_race & race, llama_token_data * data, size_t n) {
    return kernels::avx2::is_supported() ? enter(race, data, n) : 0;
}

} // namespace eagle3

#else

namespace eagle3 {

size_t enter_by_avx2(gumbel_race & /*race*/, llama_token_data * /*data*/, size_t /*n*/) {
    return 0;
}

} // namespace eagle3

#endif
