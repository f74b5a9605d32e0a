// Makes the kernels of a format whose blocks have 32 inputs, one for each instruction set.
#pragma once

#include "kernels/blocks_avx2.h"
#include "kernels/blocks_avx512.h"

#ifdef EAGLE3_HAS_KERNELS

namespace eagle3::kernels {

template <class set, class format>
constexpr auto compute_of() {
#if defined(__x86_64__)
    if constexpr (set::is_wide) {
        return avx512::compute_blocks<set, format>;
    }
#endif
    return avx2::compute_blocks<set, format>;
}

template <class format, class rows = avx2::q8_0_rows>
std::vector<kernel> blocks_kernels(const std::string & name, ggml_type type) {
    return avx2::by_instruction_sets([&](auto isa) {
        using set = decltype(isa);
        return kernel{ name + "/" + set::name,
                       type,
                       format::n_channels > 1 ? layout::repacked : layout::mapped,
                       format::n_channels,
                       std::max(rows::n_inputs, format::block_inputs),
                       format::n_together,
                       set::is_supported,
                       avx2::q8_row_size<avx2::sums_of<set, format>>,
                       rows::template quantize<avx2::sums_of<set, format>>,
                       compute_of<set, format>() };
    });
}

} // namespace eagle3::kernels
#endif
