// Element types: how each is stored, what it is accumulated in, and how it is rounded back. Reductions fold in rank order in the
// accumulator (float32; float64 for float64; the integers wrap) and round once, so results depend on nothing but the inputs.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "platform/platform.h"

namespace mk {

// Integers of up to 32 bits accumulate in 32 bits, wider ones in 64; both wrap, so narrowing gives what the type itself would.
template <class S, class A, class U> struct Integer {
  using Store = S;
  using Acc = A;
  MK_DEVICE static Acc widen(Store v) { return static_cast<Acc>(v); }
  MK_DEVICE static Store narrow(Acc v) { return static_cast<Store>(v); }
  MK_DEVICE static Acc add(Acc a, Acc b) { return static_cast<Acc>(static_cast<U>(a) + static_cast<U>(b)); }
  MK_DEVICE static Acc mul(Acc a, Acc b) { return static_cast<Acc>(static_cast<U>(a) * static_cast<U>(b)); }
  // The mean of integers is the wrapped sum divided in the type, rounded towards zero.
  MK_DEVICE static Store average(Acc sum, uint32_t ranks) { return static_cast<Store>(static_cast<Acc>(narrow(sum)) / static_cast<Acc>(ranks)); }
};

template <class S, class A> struct Floating {
  using Store = S;
  using Acc = A;
  MK_DEVICE static Acc add(Acc a, Acc b) { return a + b; }
  MK_DEVICE static Acc mul(Acc a, Acc b) { return a * b; }
};

struct Int8 : Integer<int8_t, int32_t, uint32_t> {};
struct Uint8 : Integer<uint8_t, uint32_t, uint32_t> {};
struct Int32 : Integer<int32_t, int32_t, uint32_t> {};
struct Uint32 : Integer<uint32_t, uint32_t, uint32_t> {};
struct Int64 : Integer<int64_t, int64_t, uint64_t> {};
struct Uint64 : Integer<uint64_t, uint64_t, uint64_t> {};

struct Float32 : Floating<float, float> {
  MK_DEVICE static float widen(float v) { return v; }
  MK_DEVICE static float narrow(float v) { return v; }
  MK_DEVICE static float average(float sum, uint32_t ranks) { return sum / static_cast<float>(ranks); }
};
struct Float64 : Floating<double, double> {
  MK_DEVICE static double widen(double v) { return v; }
  MK_DEVICE static double narrow(double v) { return v; }
  MK_DEVICE static double average(double sum, uint32_t ranks) { return sum / static_cast<double>(ranks); }
};
struct Float16 : Floating<__half, float> {
  MK_DEVICE static float widen(__half v) { return __half2float(v); }
  MK_DEVICE static __half narrow(float v) { return __float2half_rn(v); }
  MK_DEVICE static __half average(float sum, uint32_t ranks) { return narrow(sum / static_cast<float>(ranks)); }
};
struct Bfloat16 : Floating<__nv_bfloat16, float> {
  MK_DEVICE static float widen(__nv_bfloat16 v) { return __bfloat162float(v); }
  MK_DEVICE static __nv_bfloat16 narrow(float v) { return __float2bfloat16_rn(v); }
  MK_DEVICE static __nv_bfloat16 average(float sum, uint32_t ranks) { return narrow(sum / static_cast<float>(ranks)); }
};
// Rounds to nearest even and saturates to the largest finite value.
template <__nv_fp8_interpretation_t kFormat> struct Float8 : Floating<uint8_t, float> {
  MK_DEVICE static float widen(uint8_t v) { return __half2float(__half(__nv_cvt_fp8_to_halfraw(v, kFormat))); }
  MK_DEVICE static uint8_t narrow(float v) { return __nv_cvt_float_to_fp8(v, __NV_SATFINITE, kFormat); }
  MK_DEVICE static uint8_t average(float sum, uint32_t ranks) { return narrow(sum / static_cast<float>(ranks)); }
};

using Float8e4m3 = Float8<__NV_E4M3>;
using Float8e5m2 = Float8<__NV_E5M2>;

// Larger and smaller of two in rank order: a NaN loses, and of equal values (-0 and +0) the earlier rank's stays.
template <class A> MK_DEVICE A larger(A a, A b) { return (b > a || a != a) ? b : a; }
template <class A> MK_DEVICE A smaller(A a, A b) { return (b < a || a != a) ? b : a; }

}  // namespace mk
