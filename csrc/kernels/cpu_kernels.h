#pragma once

#include "ggml.h"
#include "kernels/kernel.h"

#include <map>
#include <string>
#include <vector>

namespace eagle3::kernels {

using matrices   = std::vector<const ggml_tensor *>;
using row_limits = std::map<std::string, int64_t>; // [name of a kernel]: operations of more rows are left to ggml

// Which of these weights each kernel would compute, of those that are named in `limits`.
std::map<std::string, matrices> matrices_by_kernel(const matrices & weights, const row_limits & limits);

// Whether our kernels compute products with this weight: those of a cpu_kernels that lives
bool is_computed(const ggml_tensor * weight);

// Whether an operation multiplies such weights, or what was computed with them; and whether our kernels compute it on a
// CPU: there are types, shapes and numbers of rows that they leave to ggml.
bool is_registered(const ggml_tensor * op);
bool is_computed_by_kernel(const ggml_tensor * op);

// While it lives, ggml's CPU backend computes products with these weights by our kernels, where one serves, in its own
// threads. Weights of other models in the process are computed as before.
//
// This stands where ggml's own layouts stand: the CPU backend asks each of its extra buffer types
// (ggml/src/ggml-cpu/traits.h) for every operation whether it computes it.
class cpu_kernels {
  public:
    // kernels that `limits` does not name are not used
    cpu_kernels(const matrices & weights, const row_limits & limits);
    ~cpu_kernels() { close(); }
    cpu_kernels(const cpu_kernels &)             = delete;
    cpu_kernels & operator=(const cpu_kernels &) = delete;

    // to be called before the weights are freed: their addresses may be another model's then
    void close();

    // [name of a kernel]: how many of the weights it computes
    const std::map<std::string, int64_t> & n_weights() const { return n_weights_; }

    // why there are none; empty if there are some
    const std::string & why_not() const { return why_not_; }

  private:
    matrices                       weights_; // those that a kernel computes
    std::map<std::string, int64_t> n_weights_;
    std::string                    why_not_;
};

} // namespace eagle3::kernels
