#include "kernels/limited_product.h"

namespace eagle3::kernels {

namespace {

thread_local limited_product * innermost = nullptr;

} // namespace

limited_product::limited_product(const ggml_tensor * matrix, const channel_ranges * ranges) :
    matrix_(matrix), ranges_(ranges), outer_(innermost) {
    innermost = this;
}

limited_product::~limited_product() {
    innermost = outer_;
}

const channel_ranges * limited_product::ranges_of(const ggml_tensor * matrix) {
    return innermost && innermost->matrix_ == matrix ? innermost->ranges_ : nullptr;
}

} // namespace eagle3::kernels
