// Computes products and attention by every kernel of this processor, from inputs that are the same everywhere, and
// prints hashes of their bits. Two processors compute the same if these are equal (tests/run_arm.py). Products are
// compared with float64 here.
//
// With --count KERNEL ROWS CHANNELS it multiplies by one kernel alone, to count instructions; "FORMAT/ggml" is ggml's
// kernel for the same weights.
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"
#include "kernels/cpu_kernels.h"
#include "kernels/libggml_cpu.h"

#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace {

using eagle3::kernels::kernel;

struct random_numbers {
    uint64_t state;

    uint64_t next() { // SplitMix64
        uint64_t z = state += 0x9e3779b97f4a7c15;
        z          = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
        z          = (z ^ z >> 27) * 0x94d049bb133111eb;
        return z ^ z >> 31;
    }

    // returns a multiple of 2^-23 in [-1, 1)
    float uniform() { return static_cast<float>(static_cast<int32_t>(next() >> 40) - (1 << 23)) * 0x1p-23f; }

    // returns a half float between 2^-10 and 2^-5, of any sign
    uint16_t half() {
        const uint64_t x = next();
        return static_cast<uint16_t>((x & 0x83ff) | (5 + (x >> 20) % 5) << 10);
    }
};

std::vector<float> random_floats(random_numbers & random, size_t n) {
    std::vector<float> x(n);
    for (float & value : x) {
        value = random.uniform();
    }
    return x;
}

uint64_t hash(const void * data, size_t n_bytes) {
    uint64_t h = 0xcbf29ce484222325;
    for (size_t i = 0; i < n_bytes; ++i) {
        h = (h ^ static_cast<const uint8_t *>(data)[i]) * 0x100000001b3;
    }
    return h;
}

void fail(const std::string & what) {
    std::printf("FAILED: %s\n", what.c_str());
    std::exit(1);
}

// returns the offsets of a block's half floats; MXFP4 has an exponent instead, NVFP4 and IQ1_M have scales of their own
// kind, an F16 block is one half float
std::vector<int> places_of_halves(ggml_type type) {
    switch (type) {
        case GGML_TYPE_Q4_0:
        case GGML_TYPE_Q5_0:
        case GGML_TYPE_Q8_0:
        case GGML_TYPE_IQ4_NL:
        case GGML_TYPE_IQ4_XS:
        case GGML_TYPE_IQ1_S:
        case GGML_TYPE_IQ2_XXS:
        case GGML_TYPE_IQ2_XS:
        case GGML_TYPE_IQ2_S:
        case GGML_TYPE_IQ3_XXS:
        case GGML_TYPE_IQ3_S:
        case GGML_TYPE_Q1_0:
        case GGML_TYPE_Q2_0:
        case GGML_TYPE_F16: return { 0 };
        case GGML_TYPE_TQ1_0: return { 52 };
        case GGML_TYPE_TQ2_0: return { 64 };
        case GGML_TYPE_Q4_1:
        case GGML_TYPE_Q5_1:
        case GGML_TYPE_Q4_K:
        case GGML_TYPE_Q5_K: return { 0, 2 };
        case GGML_TYPE_Q2_K: return { 80, 82 };
        case GGML_TYPE_Q3_K: return { 108 };
        case GGML_TYPE_Q6_K: return { 208 };
        default: return {};
    }
}

// returns rows of random blocks
std::vector<uint8_t> random_weights(random_numbers & random, ggml_type type, int64_t k, int64_t n) {
    const size_t         block_bytes = ggml_type_size(type);
    std::vector<uint8_t> weights(n * ggml_row_size(type, k));
    for (size_t at = 0; at < weights.size(); at += block_bytes) {
        uint8_t * block = weights.data() + at;
        for (size_t i = 0; i < block_bytes; ++i) {
            block[i] = static_cast<uint8_t>(random.next());
        }
        for (const int place : places_of_halves(type)) {
            const uint16_t half = random.half();
            std::memcpy(block + place, &half, sizeof(half));
        }
        const float x = random.uniform();
        if (type == GGML_TYPE_MXFP4) {
            block[0] = static_cast<uint8_t>(112 + block[0] % 12);
        } else if (type == GGML_TYPE_NVFP4) {
            std::transform(block, block + 4, block, [](uint8_t byte) { return static_cast<uint8_t>(byte % 0x40); });
        } else if (type == GGML_TYPE_IQ1_M) { // a nibble in each of four words
            const uint16_t half = random.half();
            for (int i = 0; i < 4; ++i) {
                block[49 + 2 * i] = static_cast<uint8_t>((block[49 + 2 * i] & 15) | (half >> 4 * i & 15) << 4);
            }
        } else if (type == GGML_TYPE_BF16) {
            std::memcpy(block, reinterpret_cast<const char *>(&x) + 2, 2);
        } else if (type == GGML_TYPE_F32) {
            std::memcpy(block, &x, sizeof(x));
        }
    }
    return weights;
}

std::vector<float> multiply(const kernel & k, const uint8_t * weights, int64_t n_in, int64_t n_out, const float * x,
                            int64_t n_rows) {
    std::vector<uint8_t> rows(n_rows * k.row_size(n_in));
    for (int64_t r = 0; r < n_rows; ++r) {
        k.quantize(x + r * n_in, n_in, rows.data() + r * k.row_size(n_in));
    }
    std::vector<float> out(n_rows * n_out);
    k.compute(weights, n_in, rows.data(), n_rows, 0, n_out / k.n_channels, out.data(), n_out);
    return out;
}

// Returns half a step of rounding to 8 bits for each activation; zero for floats. With a minimum, its sum counts too.
double error_of_rows(ggml_type type, const float * x, const float * w, int64_t k) {
    if (type == GGML_TYPE_F16 || type == GGML_TYPE_BF16 || type == GGML_TYPE_F32) {
        return 0.0;
    }
    const bool    is_super = ggml_blck_size(type) == 256;
    const int64_t n_block  = is_super ? 256 : 32;
    double        square   = 0.0;
    for (int64_t b = 0; b < k; b += n_block) {
        float peak = 0.0f;
        for (int64_t i = b; i < b + n_block; ++i) {
            peak = std::max(peak, std::fabs(x[i]));
        }
        for (int64_t i = b; i < b + n_block; ++i) {
            square += std::pow(peak / 127 * w[i], 2) / 12;
        }
    }
    return 6 * std::sqrt(square); // six standard deviations
}

void compare_with_float64(const std::string & name, ggml_type type, const std::vector<uint8_t> & weights, int64_t k,
                          int64_t n, const std::vector<float> & x, const std::vector<float> & out) {
    std::vector<float> w(k);
    const size_t       row_bytes = ggml_row_size(type, k);
    for (int64_t c = 0; c < n; ++c) {
        if (type == GGML_TYPE_F32) {
            std::memcpy(w.data(), weights.data() + c * row_bytes, row_bytes);
        } else {
            ggml_get_type_traits(type)->to_float(weights.data() + c * row_bytes, w.data(), k);
        }
        for (size_t r = 0; r < x.size() / k; ++r) {
            double sum = 0.0, size = 0.0;
            for (int64_t i = 0; i < k; ++i) {
                sum += static_cast<double>(w[i]) * x[r * k + i];
                size += std::fabs(static_cast<double>(w[i]) * x[r * k + i]);
            }
            // scales of activations are half floats: 2^-11 of their block's part of the sum
            const double rounded = error_of_rows(type, x.data() + r * k, w.data(), k);
            const double allowed = rounded + (rounded > 0.0 ? 0x1p-11 : 0x1p-20) * size + 1e-6;
            if (!(std::fabs(out[r * n + c] - sum) <= allowed)) {
                fail(name + ": " + std::to_string(out[r * n + c]) + " instead of " + std::to_string(sum));
            }
        }
    }
}

// returns weights as ggml repacks them here, if it does; the caller frees them
struct repacked_weights {
    repacked_weights(ggml_type type, int64_t k, int64_t n, const std::vector<uint8_t> & data) :
        ctx(ggml_init({ ggml_tensor_overhead(), nullptr, true })), tensor(ggml_new_tensor_2d(ctx, type, k, n)) {
        buffer = ggml_backend_alloc_ctx_tensors_from_buft(ctx, eagle3::kernels::libggml().repack_buffer_type());
        layout = eagle3::kernels::repacked_as(tensor);
        if (layout.n_bytes) {
            ggml_backend_tensor_set(tensor, data.data(), 0, data.size());
        }
    }

    ~repacked_weights() {
        ggml_backend_buffer_free(buffer);
        ggml_free(ctx);
    }

    ggml_context *                ctx;
    ggml_tensor *                 tensor;
    ggml_backend_buffer_t         buffer;
    eagle3::kernels::interleaving layout;
};

void print_products() {
    std::map<ggml_type, std::vector<const kernel *>> by_type;
    for (const kernel * k : eagle3::kernels::all()) {
        // sums of products of floats have another order with AVX-512
        const bool has_other_order = !ggml_is_quantized(k->type) && k->name.find("avx512") != std::string::npos;
        if (k->is_supported() && !has_other_order) {
            by_type[k->type].push_back(k);
        }
    }
    struct shape {
        int64_t k, n, n_rows;
    };
    for (const auto & [type, kernels] : by_type) {
        for (const shape & s : { shape{ 256, 8, 1 },
                                 { 512, 24, 2 },
                                 { 768, 13, 3 },
                                 { 512, 12, 4 }, // quads, an odd number of them
                                 { 1024, 16, 5 },
                                 { 2048, 32, 19 },
                                 { 256, 3, 37 } }) {
            random_numbers         random{ static_cast<uint64_t>(type) * 1000 + s.k + s.n };
            const auto             weights = random_weights(random, type, s.k, s.n);
            const auto             x       = random_floats(random, s.n_rows * s.k);
            const repacked_weights repacked(type, s.k, s.n, weights);
            std::vector<float>     expected;
            for (const kernel * k : kernels) {
                const bool is_mapped = k->layout == eagle3::kernels::layout::mapped;
                if (!is_mapped && !(repacked.layout == eagle3::kernels::interleaving{ k->n_together, k->n_channels })) {
                    continue;
                }
                const auto * data = is_mapped ? weights.data() : static_cast<const uint8_t *>(repacked.tensor->data);
                const auto   out  = multiply(*k, data, s.k, s.n, x.data(), s.n_rows);
                std::fprintf(stderr, "%s %d x %d x %d\n", k->name.c_str(), int(s.k), int(s.n), int(s.n_rows));
                if (expected.empty()) {
                    expected = out;
                    compare_with_float64(k->name, type, weights, s.k, s.n, x, out);
                } else if (std::memcmp(expected.data(), out.data(), out.size() * sizeof(float)) != 0) {
                    fail(k->name + " differs from " + kernels.front()->name);
                }
            }
            std::printf("%s %d x %d x %d: %016llx\n", ggml_type_name(type), static_cast<int>(s.k),
                        static_cast<int>(s.n), static_cast<int>(s.n_rows),
                        static_cast<unsigned long long>(hash(expected.data(), expected.size() * sizeof(float))));
        }
    }
}

// A graph on the CPU backend whose attention is ours, since its queries come from registered weights.
struct attention_case {
    const char * name;
    ggml_type    type;
    int64_t      n_rows, n_heads, n_kv, n_dims, n_cells;
    bool         is_flash;
    float        cap;
    bool         is_pool = false; // each of four rows attends to cells of its own
    float        scale   = 0.125f;
};

void print_attention(ggml_backend_t backend, const attention_case & c) {
    random_numbers    random{ 7 };
    constexpr int64_t n_embd = 64;
    ggml_context *    ctx    = ggml_init({ ggml_tensor_overhead() * 64 + ggml_graph_overhead(), nullptr, true });
    ggml_tensor *     w      = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, n_embd, c.n_heads * c.n_dims);
    ggml_tensor *     x      = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, n_embd, c.n_rows);
    ggml_tensor *     k      = ggml_new_tensor_3d(ctx, c.type, c.n_dims, c.n_cells, c.n_kv);
    ggml_tensor *     v      = c.is_flash ? ggml_new_tensor_3d(ctx, c.type, c.n_dims, c.n_cells, c.n_kv)
                                          : ggml_new_tensor_3d(ctx, c.type, c.n_cells, c.n_dims, c.n_kv);
    ggml_tensor *     mask   = ggml_new_tensor_2d(ctx, c.is_flash ? GGML_TYPE_F16 : GGML_TYPE_F32, c.n_cells, c.n_rows);

    ggml_tensor * q = ggml_reshape_3d(ctx, ggml_mul_mat(ctx, w, x), c.n_dims, c.n_heads, c.n_rows);
    q               = ggml_permute(ctx, q, 0, 2, 1, 3);
    ggml_tensor * out;
    if (c.is_flash) {
        out = ggml_flash_attn_ext(ctx, q, k, v, mask, c.scale, 0.0f, c.cap);
    } else {
        ggml_tensor * p = ggml_soft_max_ext(ctx, ggml_mul_mat(ctx, k, q), mask, c.scale, 0.0f);
        out             = ggml_mul_mat(ctx, v, p);
    }
    ggml_cgraph * graph = ggml_new_graph(ctx);
    ggml_build_forward_expand(graph, out);
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, backend);
    for (ggml_tensor * t : { w, x, k, v }) {
        const auto weights = random_weights(random, t->type, ggml_nelements(t), 1);
        ggml_backend_tensor_set(t, weights.data(), 0, weights.size());
    }
    for (int64_t i = 0; i < ggml_nelements(mask); ++i) {
        const int64_t cell     = i % c.n_cells;
        const bool    is_other = c.is_pool && cell / 80 % 4 != i / c.n_cells % 4;
        const float   value    = cell > 0 && (is_other || random.next() % 4 == 0) ? -INFINITY : 0.0f;
        if (mask->type == GGML_TYPE_F16) {
            static_cast<ggml_fp16_t *>(mask->data)[i] = ggml_fp32_to_fp16(value);
        } else {
            static_cast<float *>(mask->data)[i] = value;
        }
    }
    // not by AVX-512, which has another order
    eagle3::kernels::cpu_kernels registered({ w }, { { "f32/avx2", INT64_MAX / 2 }, { "f32/neon", INT64_MAX / 2 } });
    if (registered.n_weights().empty() || ggml_backend_graph_compute(backend, graph) != GGML_STATUS_SUCCESS) {
        fail(std::string(c.name) + " " + registered.why_not());
    }
    registered.close();
    std::printf("attention %s: %016llx\n", c.name, static_cast<unsigned long long>(hash(out->data, ggml_nbytes(out))));
    ggml_backend_buffer_free(buffer);
    ggml_free(ctx);
}

// runs ggml's kernel for repacked weights: one row, or four interleaved ones
using ggml_function = void (*)(int k, float * out, size_t ldo, const void * weights, const void * rows, int n_rows,
                               int n_channels);

void count(const std::string & name, int n_rows, int n_channels) {
    constexpr int     k      = 1024; // independent of the number of channels
    const std::string format = name.substr(0, name.find('/'));
    for (const kernel * each : eagle3::kernels::all()) {
        if (each->name.substr(0, each->name.find('/')) != format || !each->is_supported()) {
            continue;
        }
        random_numbers       random{ 1 };
        const auto           weights = random_weights(random, each->type, k, 16);
        std::vector<uint8_t> rows(2 * n_rows * each->row_size(k));
        std::vector<float>   out(n_rows * n_channels);
        if (each->name == name) {
            each->compute(weights.data(), k, rows.data(), n_rows, 0, n_channels / each->n_channels, out.data(),
                          n_channels);
            return;
        }
        if (name == format + "/ggml") {
            const std::string layout   = format == "q4_Kx8" ? "q4_K_8x8" : format;
            const std::string symbol   = std::string(n_rows > 1 ? "ggml_gemm_" : "ggml_gemv_") + layout +
                                         (ggml_blck_size(each->type) == 256 ? "_q8_K" : "_q8_0");
            const auto        function = reinterpret_cast<ggml_function>(dlsym(RTLD_DEFAULT, symbol.c_str()));
            if (!function) {
                fail("no " + symbol);
            }
            function(k, out.data(), n_channels, weights.data(), rows.data(), n_rows, n_channels);
            return;
        }
    }
    fail("no kernel " + name);
}

} // namespace

int main(int argc, char ** argv) {
    if (argc == 5 && std::string(argv[1]) == "--count") {
        count(argv[2], std::atoi(argv[3]), std::atoi(argv[4]));
        return 0;
    }
    ggml_backend_t backend = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(backend, 2);
    if (!eagle3::kernels::libggml().is_complete()) {
        fail("this libggml-cpu does not export what kernels need");
    }
    print_products();
    for (const attention_case & c : {
             attention_case{ "flash f16", GGML_TYPE_F16, 5, 8, 2, 64, 300, true, 0.0f },
             attention_case{ "flash f16, one row", GGML_TYPE_F16, 1, 4, 4, 128, 513, true, 0.0f },
             attention_case{ "flash q8_0, cap", GGML_TYPE_Q8_0, 4, 6, 3, 96, 200, true, 2.0f },
             attention_case{ "flash f32", GGML_TYPE_F32, 16, 2, 1, 72, 100, true, 0.0f },
             attention_case{ "flash f16, a pool", GGML_TYPE_F16, 8, 6, 2, 64, 700, true, 0.0f, true },
             attention_case{ "flash f16, a prompt", GGML_TYPE_F16, 150, 4, 2, 64, 300, true, 0.0f },
             attention_case{ "flash q8_0, a prompt of a pool", GGML_TYPE_Q8_0, 130, 3, 1, 64, 400, true, 0.0f, true },
             attention_case{ "flash f16, few cells count", GGML_TYPE_F16, 4, 4, 2, 64, 500, true, 0.0f, false, 20.0f },
             attention_case{ "products f16", GGML_TYPE_F16, 5, 9, 3, 64, 264, false, 0.0f },
             attention_case{ "products f16, one row", GGML_TYPE_F16, 1, 4, 4, 64, 136, false, 0.0f },
             attention_case{ "products f32", GGML_TYPE_F32, 13, 8, 1, 72, 640, false, 0.0f },
         }) {
        print_attention(backend, c);
    }
    ggml_backend_free(backend);
    return 0;
}
