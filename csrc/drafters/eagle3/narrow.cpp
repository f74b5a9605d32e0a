#include "drafters/eagle3/narrow.h"

#include <algorithm>
#include <future>
#include <iterator>

namespace eagle3 {

// The types that ggml quantizes well from the values alone, and F32, with which every matrix stays as it is.
static constexpr ggml_type types[] = { GGML_TYPE_F32,  GGML_TYPE_BF16, GGML_TYPE_Q8_0,  GGML_TYPE_Q6_K,
                                       GGML_TYPE_Q5_K, GGML_TYPE_Q5_1, GGML_TYPE_Q5_0,  GGML_TYPE_Q4_K,
                                       GGML_TYPE_Q4_1, GGML_TYPE_Q4_0, GGML_TYPE_IQ4_NL };

bool can_convert_to(ggml_type type) {
    return std::find(std::begin(types), std::end(types), type) != std::end(types);
}

std::string convertible_types() {
    std::string names;
    for (const ggml_type type : types) {
        names += (names.empty() ? "" : ", ") + std::string(ggml_type_name(type));
    }
    return names;
}

ggml_type narrower(const ggml_tensor * matrix, ggml_type type) {
    const int64_t n_in     = matrix->ne[0];
    const bool    readable = matrix->type == GGML_TYPE_F32 || ggml_get_type_traits(matrix->type)->to_float;
    const bool    fits     = n_in % ggml_blck_size(type) == 0;
    return readable && fits && ggml_row_size(type, n_in) < ggml_row_size(matrix->type, n_in) ? type : matrix->type;
}

std::vector<uint8_t> convert_matrix(const ggml_tensor * matrix, const uint8_t * data, ggml_type type,
                                    int32_t n_threads) {
    const int64_t        n_in    = matrix->ne[0];
    const int64_t        n_rows  = ggml_nrows(matrix);
    const size_t         n_bytes = ggml_row_size(type, n_in);
    std::vector<uint8_t> result(n_rows * n_bytes);

    ggml_quantize_init(type); // here, not by several threads at once
    const auto convert = [&](int64_t first, int64_t last) {
        const ggml_to_float_t to_float = ggml_get_type_traits(matrix->type)->to_float;
        std::vector<float>    values(n_in);
        for (int64_t row = first; row < last; ++row) {
            const uint8_t * src = data + row * matrix->nb[1];
            if (matrix->type == GGML_TYPE_F32) {
                std::copy_n(reinterpret_cast<const float *>(src), n_in, values.data());
            } else {
                to_float(src, values.data(), n_in);
            }
            ggml_quantize_chunk(type, values.data(), result.data() + row * n_bytes, 0, 1, n_in, nullptr);
        }
    };
    const int64_t                  n_each = (n_rows + n_threads - 1) / n_threads;
    std::vector<std::future<void>> shares;
    for (int64_t first = 0; first < n_rows; first += n_each) {
        shares.push_back(std::async(std::launch::async, convert, first, std::min(first + n_each, n_rows)));
    }
    for (std::future<void> & share : shares) {
        share.get();
    }
    return result;
}

} // namespace eagle3
