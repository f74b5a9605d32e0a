// While a rounding_downwards lives, sums and products of this thread are rounded downwards.
#pragma once

#include "kernels/avx2.h"

#ifdef EAGLE3_HAS_KERNELS

namespace eagle3::kernels {

class rounding_downwards {
  public:
#if defined(__x86_64__)
    rounding_downwards() { _mm_setcsr((mode_ & ~static_cast<unsigned int>(_MM_ROUND_MASK)) | _MM_ROUND_DOWN); }
    ~rounding_downwards() { _mm_setcsr(mode_); }
#else
    rounding_downwards() { set((mode_ & ~(uint64_t{ 3 } << 22)) | uint64_t{ 2 } << 22); }
    ~rounding_downwards() { set(mode_); }
#endif
    rounding_downwards(const rounding_downwards &)             = delete;
    rounding_downwards & operator=(const rounding_downwards &) = delete;

  private:
#if defined(__x86_64__)
    const unsigned int mode_ = _mm_getcsr();
#else
    static uint64_t get() {
        uint64_t mode;
        asm volatile("mrs %0, fpcr" : "=r"(mode)::"memory");
        return mode;
    }

    static void set(uint64_t mode) { asm volatile("msr fpcr, %0" ::"r"(mode) : "memory"); }

    const uint64_t mode_ = get();
#endif
};

} // namespace eagle3::kernels
#endif
