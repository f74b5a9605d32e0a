// Computes the loops of attention with AVX2 and with AVX-512, on random numbers; prints which of them differ in any
// bit. test_kernel_wide.py compiles it with a ggml.h of its own.
#include "kernels/attention_keys_avx512.h"
#include "kernels/attention_values_avx512.h"
#include "kernels/attention_weights_avx512.h"

#include <cstdio>
#include <vector>

using namespace eagle3::kernels;

namespace {

uint64_t state = 1;

float uniform() { // in [-1, 1)
    state = state * 6364136223846793005 + 1442695040888963407;
    return static_cast<float>(static_cast<int32_t>(state >> 32)) * 0x1p-31f;
}

std::vector<float> floats(size_t n, float scale = 1.0f) {
    std::vector<float> x(n);
    for (float & value : x) {
        value = scale * uniform();
    }
    return x;
}

// F16 numbers, or F32 ones in the same number of values
std::vector<char> cache(ggml_type type, size_t n) {
    std::vector<char> data(n * (type == GGML_TYPE_F32 ? 4 : 2));
    for (size_t i = 0; i < n; ++i) {
        const float x = uniform();
        if (type == GGML_TYPE_F32) {
            std::memcpy(&data[4 * i], &x, 4);
        } else {
            const auto half = static_cast<uint16_t>((state >> 20 & 0x83ff) | (10 + (state >> 8) % 6) << 10);
            std::memcpy(&data[2 * i], &half, 2);
        }
    }
    return data;
}

template <class T>
void compare(const char * what, const std::vector<T> & a, const std::vector<T> & b) {
    if (std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) != 0) {
        std::printf("%s differ\n", what);
    }
}

void keys(ggml_type type, int64_t n_rows, int64_t n_keys, int64_t n_dims) {
    const auto         data = cache(type, n_keys * n_dims), queries = cache(GGML_TYPE_F32, n_rows * n_dims);
    std::vector<float> found[2];
    for (int i = 0; i < 2; ++i) {
        found[i].resize(n_rows * 8);
        avx2::block_of_queries rows;
        for (rows.n = 0; rows.n < n_rows; ++rows.n) {
            rows.queries[rows.n] = reinterpret_cast<const float *>(queries.data()) + rows.n * n_dims;
            rows.out[rows.n]     = found[i].data() + 8 * rows.n;
        }
        std::vector<float>     scratch(4 * n_dims);
        avx2::keys_ahead       ahead;
        const avx2::cache_rows some{ type, data.data(), data.size() / n_keys, n_keys };
        (i == 0 ? avx2::multiply_keys : avx512::multiply_keys)(some, 4, n_dims, rows, scratch.data(), ahead);
        for (int64_t r = 0; r < n_rows; ++r) { // what lies beyond the last key does not count
            std::fill_n(found[i].data() + 8 * r + 4 + n_keys, 4 - n_keys, 0.0f);
        }
    }
    compare("products with keys", found[0], found[1]);
}

void values(ggml_type type, int64_t n_rows, int64_t n_cells, int64_t n_channels, int64_t step) {
    const auto           data    = cache(type, n_cells * n_channels);
    const auto           weights = floats(n_rows * 64, 60000.0f);
    std::vector<float>   bounds(n_cells, 1.0f);
    std::vector<int32_t> found[2];
    bounds[n_cells / 2] = step == 8 ? avx2::INF : 1.0f;
    for (int i = 0; i < 2; ++i) {
        found[i].resize(avx2::N_ROWS * 160);
        avx2::block_of_weights b;
        std::fill_n(b.steps, avx2::N_ROWS / avx2::N_ROWS_TILE, step);
        for (b.n = 0; b.n < n_rows; ++b.n) {
            b.weights[b.n] = weights.data() + 64 * b.n;
            b.rows[b.n]    = static_cast<int32_t>(avx2::N_ROWS - n_rows + b.n);
        }
        std::vector<float>     scratch(64 * 32);
        const avx2::cache_rows some{ type, data.data(), data.size() / n_cells, n_cells };
        (i == 0 ? avx2::add_block : avx512::add_block)(b, some, bounds.data(), 0, n_channels, scratch.data(),
                                                       found[i].data(), {});
        for (int64_t at = 0; at < avx2::N_ROWS * 160; ++at) { // nor do channels beyond the last one
            const int64_t channel = at / avx2::N_LANES / avx2::N_ROWS * avx2::N_LANES + at % avx2::N_LANES;
            found[i][at]          = channel < n_channels ? found[i][at] : 0;
        }
    }
    compare("sums of values", found[0], found[1]);
}

void weights(float scale, float cap) {
    auto               mask = floats(32), bounds = floats(32, 2.0f);
    std::vector<float> scores[2] = { floats(32, scale), {} };
    mask[3] = mask[17] = -avx2::INF;
    scores[0][5] = scores[0][17] = NAN;
    scores[0][6]                 = avx2::INF;
    for (float & bound : bounds) {
        bound = std::abs(bound);
    }
    scores[1] = scores[0];
    std::vector<double> sums[2];
    std::vector<float>  rest[2];
    for (int i = 0; i < 2; ++i) {
        float *           x   = scores[i].data();
        const float       max = i == 0 ? avx2::finish_scores(x, mask.data(), 0.1f, cap, 0.5f)
                                       : avx512::finish_scores(x, mask.data(), 0.1f, cap, 0.5f);
        avx2::sums_of_row sum;
        (i == 0 ? avx2::to_exponentials : avx512::to_exponentials)(x, bounds.data(), std::min(max, 3.0f), sum);
        avx2::heavy_cell heavy[avx2::N_HEAVY] = {};
        int32_t          n                    = 0;
        const int64_t step = (i == 0 ? avx2::finish_weights : avx512::finish_weights)(x, bounds.data(), 32,
                                                                                      avx2::SUM_MAX / 9.0f, heavy, n);
        sums[i]            = { sum.total() };
        rest[i]            = { max, sum.bound(), static_cast<float>(n), static_cast<float>(step), heavy[0].weight };
    }
    compare("weights", scores[0], scores[1]);
    compare("sums of weights", sums[0], sums[1]);
    compare("bounds and heavy cells", rest[0], rest[1]);
}

} // namespace

int main() {
    if (!avx512::has_floats()) {
        std::puts("no AVX-512");
        return 0;
    }
    for (const ggml_type type : { GGML_TYPE_F16, GGML_TYPE_F32 }) {
        for (int64_t n_rows = 1; n_rows <= 48; ++n_rows) {
            keys(type, n_rows, 1 + n_rows % 4, 8 * (1 + n_rows % 17));
            keys(type, n_rows, 4, 128);
            for (const int64_t step : { 1, 8, 16, 32, 64 }) {
                values(type, n_rows, 1 + (7 * n_rows + step) % 64, 8 * (1 + n_rows % 17), step);
            }
        }
    }
    for (int i = 0; i < 200; ++i) {
        weights(static_cast<float>(1 << i % 9), i % 3 == 0 ? 2.0f : 0.0f);
    }
    std::puts("done");
}
