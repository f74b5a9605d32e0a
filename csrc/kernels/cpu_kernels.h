#pragma once

#include "ggml.h"
#include "kernels/kernel.h"

#include <map>
#include <string>
#include <vector>

namespace eagle3::kernels {

using matrices   = std::vector<const ggml_tensor *>;
using row_limits = std::map<std::string, int64_t>; // [name of a kernel]: operations of more rows are left to ggml

// [name of a kernel]: the weights whose products it would compute. Kernels that `limits` does not name get none.
std::map<std::string, matrices> matrices_by_kernel(const matrices & weights, const row_limits & limits);

// Do our kernels compute products with this weight? They do while its cpu_kernels lives.
bool is_computed(const ggml_tensor * weight);

// Does an operation multiply such weights, or rows that were computed with them?
bool is_registered(const ggml_tensor * op);

// Do our kernels compute this operation? They leave some types, shapes and numbers of rows to ggml.
bool is_computed_by_kernel(const ggml_tensor * op);

// While it lives, ggml's CPU backend computes products with these weights by our kernels, if one reads them, in the
// backend's own threads. Weights of other models in the process are computed as before.
//
// The CPU backend asks each of its extra buffer types (ggml/src/ggml-cpu/traits.h) whether it computes an operation,
// which is how ggml's own repacked layouts work. This adds one.
class cpu_kernels {
  public:
    // Kernels that `limits` does not name are not used.
    cpu_kernels(const matrices & weights, const row_limits & limits);
    ~cpu_kernels() { close(); }
    cpu_kernels(const cpu_kernels &)             = delete;
    cpu_kernels & operator=(const cpu_kernels &) = delete;

    // Must be called before the weights are freed, as their addresses may be another model's afterwards.
    void close();

    // [name of a kernel]: the number of weights that it computes.
    const std::map<std::string, int64_t> & n_weights() const { return n_weights_; }

    // Why no kernel computes any; empty if one does.
    const std::string & why_not() const { return why_not_; }

  private:
    matrices                       weights_; // those that a kernel computes
    std::map<std::string, int64_t> n_weights_;
    std::string                    why_not_;
};

} // namespace eagle3::kernels
