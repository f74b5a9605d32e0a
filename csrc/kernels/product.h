#pragma once

#include "kernels/kernel.h"
#include "kernels/libggml_cpu.h"
#include "kernels/limited_product.h"

namespace eagle3::kernels {

// Computes MUL_MAT and MUL_MAT_ID by one kernel. All threads quantize rows, then they take parts of the channels of
// every matrix in turn.
class product : public op_traits {
  public:
    // n_rows_max: operations of more rows are left to ggml.
    product(const kernel & k, int64_t n_rows_max) : kernel_(k), n_rows_max_(n_rows_max) {}

    // Can it compute this operation, whose weights its kernel reads?
    bool takes(const ggml_tensor * op) const;

    bool work_size(int n_threads, const ggml_tensor * op, size_t & size) override;
    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override;

  private:
    struct expert_rows;
    struct shared;
    class parts;

    void multiply(ggml_compute_params * params, ggml_tensor * op) const;
    void multiply_experts(ggml_compute_params * params, ggml_tensor * op) const;

    // Multiplies a matrix by n_rows rows: out[r * ldo + channel].
    void compute_matrix(parts & parts, const ggml_tensor * w, const char * matrix, const uint8_t * rows, int64_t n_rows,
                        float * out, int64_t ldo) const;

    // Multiplies groups [first, last) of a matrix by n_rows rows.
    void compute_groups(const ggml_tensor * w, const char * matrix, const uint8_t * rows, int64_t n_rows, int64_t first,
                        int64_t last, float * out, int64_t ldo) const;

    // Computes the groups in `ranges`; channels outside them become -INFINITY.
    void compute_ranges(parts & parts, const ggml_tensor * w, const channel_ranges & ranges, const uint8_t * rows,
                        int64_t n_rows, float * out, int64_t ldo) const;

    // Multiplies an expert by the rows that chose it.
    void compute_expert(parts & parts, ggml_tensor * op, int64_t expert, const uint8_t * rows,
                        const expert_rows & chosen, float * scratch) const;

    // Bytes of a group of channels.
    size_t group_bytes(int64_t k) const;

    int64_t n_groups_together(int64_t k) const;

    const kernel & kernel_;
    const int64_t  n_rows_max_;
};

} // namespace eagle3::kernels
