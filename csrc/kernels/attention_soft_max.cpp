// The sum over the cells of a row is exact, so that it does not depend on their order: see exact_sum.
#include "kernels/attention.h"

#include "kernels/attention_cache.h"
#include "kernels/attention_exp.h"
#include "kernels/floats_avx2.h"
#include "kernels/op_rows.h"

#ifdef EAGLE3_HAS_KERNELS

#include <algorithm>
#include <cmath>
#include <limits>

namespace eagle3::kernels {

namespace {

using namespace avx2;

// y = x * scale + mask * slope; a masked cell gets -INF whatever its score is, NaN included. Returns the largest; a
// score that is NaN counts as infinite.
template <class format>
AVX2 float scores(const float * x, const char * mask, int64_t n, float scale, float slope, float * y) {
    const __m256 none = _mm256_set1_ps(-INF);
    __m256       max  = none;
    for (int64_t i = 0; i < n; i += 8) {
        __m256 value = _mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(scale));
        if (mask) {
            const __m256 added = format::load8(mask, i);
            value              = _mm256_fmadd_ps(added, _mm256_set1_ps(slope), value);
            value              = _mm256_blendv_ps(value, none, _mm256_cmp_ps(added, none, _CMP_EQ_OQ));
        }
        _mm256_storeu_ps(y + i, value);
        max = _mm256_max_ps(max, or_infinite(value));
    }
    return largest_lane(max);
}

class soft_max_of_attention : public op_traits {
  public:
    bool work_size(int, const ggml_tensor *, size_t & size) override {
        size = 0;
        return true;
    }

    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        const auto [first, last] = share(params, ggml_nrows(op));
        for (int64_t row = first; row < last; ++row) {
            compute(op, row % op->ne[1], row / op->ne[1] % op->ne[2], row / op->ne[1] / op->ne[2]);
        }
        return true;
    }

  private:
    static void compute(const ggml_tensor * op, int64_t i1, int64_t head, int64_t i3) {
        const ggml_tensor * mask  = op->src[1];
        const ggml_tensor * sinks = op->src[2];
        const int64_t       n     = op->ne[0];
        float               options[2]; // scale, max_bias
        std::memcpy(options, op->op_params, sizeof(options));
        const float   slope   = slope_of(head, op->ne[2], options[1]);
        const char *  added   = mask ? at<const char>(mask, i1, head % mask->ne[2], i3 % mask->ne[3]) : nullptr;
        const float * x       = at<const float>(op->src[0], i1, head, i3);
        auto *        y       = at<float>(op, i1, head, i3);
        const bool    is_half = mask && mask->type == GGML_TYPE_F16;
        float         max     = (is_half ? scores<f16> : scores<f32>) (x, added, n, options[0], slope, y);
        const float   sink    = sinks ? static_cast<const float *>(sinks->data)[head] : 0.0f;
        if (sinks) {
            max = std::max(max, sink);
        }
        if (!std::isfinite(max)) { // the row sees nothing, or scores that are no numbers
            std::fill(y, y + n, max == -INF ? 0.0f : std::numeric_limits<float>::quiet_NaN());
            return;
        }
        double sum = exponentials(y, n, max);
        if (sinks) {
            sum += std::exp(sink - max);
        }
        multiply_by(y, n, static_cast<float>(1.0 / sum));
    }
};

} // namespace

op_traits * attention_soft_max(const ggml_tensor * op) {
    static soft_max_of_attention instance;

    const ggml_tensor * x         = op->src[0];
    const ggml_tensor * mask      = op->src[1];
    const bool          has_types = x->type == GGML_TYPE_F32 && op->type == GGML_TYPE_F32 &&
                                    (!mask || mask->type == GGML_TYPE_F32 || mask->type == GGML_TYPE_F16);
    const bool          is_dense  = x->nb[0] == sizeof(float) && op->nb[0] == sizeof(float);
    const bool          is_short  = op->ne[1] * op->ne[3] <= N_ATTENTION_ROWS_MAX;
    return has_types && is_dense && is_short && op->ne[0] % 8 == 0 && is_supported() ? &instance : nullptr;
}

} // namespace eagle3::kernels
#endif
