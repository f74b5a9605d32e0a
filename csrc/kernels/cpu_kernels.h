#pragma once

#include "ggml.h"
#include "kernels/kernel.h"

#include <map>
#include <string>
#include <vector>

namespace eagle3::kernels {

// While it lives, ggml's CPU backend computes products with these weights by our kernels, where one serves, in its own
// threads. Weights of other models in the process are computed as before.
//
// This stands where ggml's own layouts stand: the CPU backend asks each of its extra buffer types
// (ggml/src/ggml-cpu/traits.h) for every operation whether it computes it.
class cpu_kernels {
  public:
    // n_rows_max: passes of more rows are left to ggml
    cpu_kernels(const std::vector<const ggml_tensor *> & weights, int64_t n_rows_max);
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
    std::vector<const ggml_tensor *> weights_; // those that a kernel computes
    std::map<std::string, int64_t>   n_weights_;
    std::string                      why_not_;
};

} // namespace eagle3::kernels
