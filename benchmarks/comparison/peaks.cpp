// Multiply-adds per second of this processor's threads that do nothing else: of 8-bit integers as kernels add them up
// (VNNI, else AVX2's products of pairs), and of floats. Prints both.
//
//     peaks THREADS

#include <immintrin.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace {

constexpr int n_sums  = 12; // independent sums, so that no addition waits for the one before
constexpr int n_loops = 4'000'000;

#if defined(__AVX512VNNI__)
using ints = __m512i;
ints add_products(ints sum, ints a, ints b) {
    return _mm512_dpbusd_epi32(sum, a, b);
}
#elif defined(__AVXVNNI__)
using ints = __m256i;
ints add_products(ints sum, ints a, ints b) {
    return _mm256_dpbusd_avx_epi32(sum, a, b);
}
#else
using ints = __m256i;
ints add_products(ints sum, ints a, ints b) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1)));
}
#endif

#if defined(__AVX512F__)
using floats = __m512;
floats add_products(floats sum, floats a, floats b) {
    return _mm512_fmadd_ps(a, b, sum);
}
#else
using floats = __m256;
floats add_products(floats sum, floats a, floats b) {
    return _mm256_fmadd_ps(a, b, sum);
}
#endif

// Bytes of 63, floats of 0.75.
template <typename T>
T filled() {
    T x;
    std::memset(&x, 0x3f, sizeof(x));
    return x;
}

// Adds products up, as often as a loop must run for its time to be a clock's.
template <typename T>
void run() {
    T a = filled<T>(), b = a, sums[n_sums];
    for (T & sum : sums) {
        sum = a;
    }
    for (int i = 0; i < n_loops; ++i) {
#pragma GCC unroll 12
        for (T & sum : sums) {
            sum = add_products(sum, a, b);
        }
        asm volatile("" : "+x"(a), "+x"(b)); // or the products would be computed once
    }
    for (T & sum : sums) {
        asm volatile("" ::"x"(sum));
    }
}

// Multiply-adds per second of so many threads together; element_bytes: of what is multiplied.
template <typename T>
double rate(int n_threads, int element_bytes) {
    std::vector<std::thread> threads;
    const auto               start = std::chrono::steady_clock::now();
    for (int i = 0; i < n_threads; ++i) {
        threads.emplace_back(run<T>);
    }
    for (std::thread & thread : threads) {
        thread.join();
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    return static_cast<double>(n_threads) * n_loops * n_sums * (sizeof(T) / element_bytes) / seconds.count();
}

} // namespace

int main(int argc, char ** argv) {
    const int n_threads = argc > 1 ? std::atoi(argv[1]) : 1;
    printf("%.6g %.6g\n", rate<ints>(n_threads, 1), rate<floats>(n_threads, 4));
    return 0;
}
