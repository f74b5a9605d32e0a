// The gated delta rule of recurrent layers (Qwen3-Next, Qwen3.5, Kimi Linear; arXiv 2412.06464, equation 10):
// S = decay S, then S += beta (v - S k) k, and the layer's output is S q. Rows of a head's state S do not depend on
// each other. ggml passes four times over the whole state for each token; here a few rows take several tokens while
// they are in the cache.
#include "kernels/attention.h"
#include "kernels/floats_avx2.h"
#include "kernels/op_rows.h"

#ifdef EAGLE3_HAS_KERNELS

#include <algorithm>
#include <cmath>

namespace eagle3::kernels {

namespace {

using namespace avx2;

constexpr int64_t N_TOKENS = 8; // tokens that rows take at a time
constexpr int64_t N_ROWS   = 4; // rows of the state at a time

// A token's inputs of a head. v: the values of N_ROWS rows; the others are the same for all rows.
struct token {
    const float * k, *q;
    const float * decay, *decayed_k; // by channel
    const float * v;
    float         beta, scale;
};

AVX2 void step(const token & t, int64_t n_channels, float * state, float * out) {
    __m256 sums[N_ROWS] = { _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps() };
    for (int64_t i = 0; i < n_channels; i += 8) {
        const __m256 k = _mm256_loadu_ps(t.decayed_k + i);
        for (int64_t r = 0; r < N_ROWS; ++r) {
            sums[r] = _mm256_fmadd_ps(_mm256_loadu_ps(state + r * n_channels + i), k, sums[r]);
        }
    }
    float changes[N_ROWS];
    _mm_storeu_ps(changes, sum4(sums[0], sums[1], sums[2], sums[3]));
    for (int64_t r = 0; r < N_ROWS; ++r) {
        changes[r] = (t.v[r] - changes[r]) * t.beta;
    }
    std::fill(sums, sums + N_ROWS, _mm256_setzero_ps());
    for (int64_t i = 0; i < n_channels; i += 8) {
        const __m256 decay = _mm256_loadu_ps(t.decay + i);
        const __m256 k     = _mm256_loadu_ps(t.k + i);
        const __m256 q     = _mm256_loadu_ps(t.q + i);
        for (int64_t r = 0; r < N_ROWS; ++r) {
            float *      x   = state + r * n_channels + i;
            const __m256 now = _mm256_fmadd_ps(_mm256_set1_ps(changes[r]), k, _mm256_mul_ps(_mm256_loadu_ps(x), decay));
            _mm256_storeu_ps(x, now);
            sums[r] = _mm256_fmadd_ps(now, q, sums[r]);
        }
    }
    _mm_storeu_ps(out, sum4(sums[0], sums[1], sums[2], sums[3]));
    for (int64_t r = 0; r < N_ROWS; ++r) {
        out[r] *= t.scale;
    }
}

class delta_net : public op_traits {
  public:
    bool work_size(int n_threads, const ggml_tensor * op, size_t & size) override {
        size = n_threads * n_own(op) * sizeof(float);
        return true;
    }

    // Divides the rows of all heads' states among the threads.
    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        const ggml_tensor * v        = op->src[2];
        const int64_t       n_groups = v->ne[0] / N_ROWS;
        auto *              own      = static_cast<float *>(params->wdata) + params->ith * n_own(op);
        const auto [first, last]     = share(params, v->ne[1] * v->ne[3] * n_groups);
        for (int64_t i = first; i < last;) { // all of this thread's rows of a head at once
            const int64_t begin = i % n_groups;
            const int64_t end   = std::min(n_groups, begin + last - i);
            compute(op, i / n_groups % v->ne[1], i / n_groups / v->ne[1], begin * N_ROWS, end * N_ROWS, own);
            i += end - begin;
        }
        return true;
    }

  private:
    // The number of floats that a thread needs: for each token the decay of each channel, and the decayed key.
    static int64_t n_own(const ggml_tensor * op) { return N_TOKENS * 2 * op->src[2]->ne[0]; }

    // Computes rows [begin, end) of a head's state in a sequence.
    static void compute(const ggml_tensor * op, int64_t head, int64_t seq, int64_t begin, int64_t end, float * own) {
        const ggml_tensor *q = op->src[0], *k = op->src[1], *v = op->src[2];
        const ggml_tensor *decay = op->src[3], *beta = op->src[4], *before = op->src[5];
        const int64_t      n = v->ne[0], n_heads = v->ne[1], n_tokens = v->ne[2], n_seqs = v->ne[3];
        const int64_t      n_states = ggml_get_op_params_i32(op, 0); // states of the last tokens, the newest first
        const int64_t      snapshot = n * n * n_heads * n_seqs; // floats from one token's states to the previous one's
        auto *             out      = static_cast<float *>(op->data);
        float *            state    = out + n * n_heads * n_tokens * n_seqs + (seq * n_heads + head) * n * n;
        std::copy_n(at<const float>(before, 0, head, seq) + begin * n, (end - begin) * n, state + begin * n);
        for (int64_t first = 0; first < n_tokens; first += N_TOKENS) {
            const int64_t n_together = std::min(N_TOKENS, n_tokens - first);
            token         tokens[N_TOKENS];
            for (int64_t i = 0; i < n_together; ++i) {
                const int64_t t       = first + i;
                float *       decays  = own + i * 2 * n;
                const auto *  of_key  = at<const float>(k, head % k->ne[1], t, seq * k->ne[3] / n_seqs);
                const auto *  of_head = at<const float>(decay, head, t, seq);
                for (int64_t c = 0; c < n; ++c) {
                    decays[c]     = decay->ne[0] == 1 && c > 0 ? decays[0] : std::exp(of_head[c]);
                    decays[n + c] = decays[c] * of_key[c];
                }
                tokens[i] = { of_key,
                              at<const float>(q, head % q->ne[1], t, seq * q->ne[3] / n_seqs),
                              decays,
                              decays + n,
                              at<const float>(v, head, t, seq),
                              *at<const float>(beta, head, t, seq),
                              1.0f / std::sqrt(static_cast<float>(n)) };
            }
            for (int64_t row = begin; row < end; row += N_ROWS) {
                for (int64_t i = 0; i < n_together; ++i) {
                    const int64_t t  = first + i;
                    token         of = tokens[i];
                    of.v += row;
                    step(of, n, state + row * n, out + ((seq * n_tokens + t) * n_heads + head) * n + row);
                    const int64_t age = n_tokens - 1 - t;
                    if (age > 0 && age < n_states) {
                        std::copy_n(state + row * n, N_ROWS * n, state + row * n + age * snapshot);
                    }
                }
            }
        }
    }
};

} // namespace

op_traits * gated_delta_net(const ggml_tensor * op) {
    static delta_net instance;

    return op->src[2]->ne[0] % 8 == 0 && is_supported() ? &instance : nullptr;
}

} // namespace eagle3::kernels
#endif
