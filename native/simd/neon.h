// AArch64 (Advanced SIMD): 32 registers of 16 bytes. Products of bytes are an extension, see isa_neon.cc.
#pragma once

#include <arm_neon.h>

#define HEED_VECTOR_BYTES 16
#include "portable.h"

namespace heed {
namespace HEED_ISA {

extern const bool kDotProducts;  // whether this machine multiplies bytes

// One instruction, which prefers numbers.
HEED_INLINE Vector<float> larger(Vector<float> a, Vector<float> b) { return vmaxnmq_f32(a, b); }
HEED_INLINE Vector<double> larger(Vector<double> a, Vector<double> b) { return vmaxnmq_f64(a, b); }

struct Simd : Portable {
  static constexpr int kRegisters = 32;
  static constexpr bool kByLane = true;

  // sum + x * from[kLane]. GCC would take lanes of its own vectors by way of the integer registers.
  template <int kLane>
  static HEED_INLINE Vector<float> add_product(Vector<float> sum, Vector<float> x, Vector<float> from) {
    return vfmaq_laneq_f32(sum, x, from, kLane);
  }
  template <int kLane>
  static HEED_INLINE Vector<double> add_product(Vector<double> sum, Vector<double> x, Vector<double> from) {
    return vfmaq_laneq_f64(sum, x, from, kLane);
  }

  template <class I>
  static HEED_INLINE bool any(I comparison) {
    return vmaxvq_u32((uint32x4_t)comparison) != 0;
  }

  static HEED_INLINE uint64_t bits_of(Integers<float> comparison) {
    constexpr Words kBits = {1, 2, 4, 8};
    return vaddvq_u32((uint32x4_t)((Words)comparison & kBits));
  }

  // A bit for each of 16 bytes that is 0.
  static HEED_INLINE uint64_t zeros_of(uint8x16_t bytes) {
    constexpr uint8x16_t kBits = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const uint8x16_t bits = vandq_u8(vceqzq_u8(bytes), kBits);
    return vaddv_u8(vget_low_u8(bits)) | static_cast<uint64_t>(vaddv_u8(vget_high_u8(bits))) << 8;
  }
  static inline uint64_t zero_bytes(const uint8_t* from, int count) {
    uint64_t zero = 0;
    int y = 0;
    for (; y + 16 <= count; y += 16) zero |= zeros_of(vld1q_u8(from + y)) << y;
    if (y < count) {
      uint8_t rest[16] = {};
      __builtin_memcpy(rest, from + y, static_cast<size_t>(count - y));
      zero |= (zeros_of(vld1q_u8(rest)) & bits_below(count - y)) << y;
    }
    return zero;
  }

  // As in `Portable`, with short chains: a multiply-add overwrites its sum, so that Horner's scheme copies each
  // coefficient. NaN stays NaN.
  static HEED_INLINE Vector<float> exp2(Vector<float> x) {
    const Vector<float> y = vmaxq_f32(x, broadcast(-127.0f)), rounded = y + kExponentRounder;
    const Vector<float> f = y - (rounded - kExponentRounder), square = f * f;
    constexpr Vector<float> kOdd = {6.931469776e-1f, 5.550733743e-2f, 1.326472720e-3f, 0};
    const Vector<float> low = vfmaq_laneq_f32(broadcast(1.0f), f, kOdd, 0);
    const Vector<float> middle = vfmaq_laneq_f32(broadcast(2.402224209e-1f), f, kOdd, 1);
    const Vector<float> high = vfmaq_laneq_f32(broadcast(9.671512640e-3f), f, kOdd, 2);
    return scale_by_power(low + square * (middle + square * high), rounded);
  }
  static HEED_INLINE Vector<float> short_exp2(Vector<float> x) { return exp2(x); }

  static HEED_INLINE Vector<float> load_bfloat16(const void* from) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(static_cast<const uint16_t*>(from)), 16));
  }

  // The machine's conversions keep denormal numbers, even where threads flush them.
  static HEED_INLINE Vector<float> load_float16(const void* from) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(static_cast<const uint16_t*>(from))));
  }
  static HEED_INLINE void store_float16(void* to, Vector<float> x) {
    vst1_u16(static_cast<uint16_t*>(to), vreinterpret_u16_f16(vcvt_f16_f32(x)));
  }

  static HEED_INLINE void store_bytes(void* to, Words words) {
    const uint8x8_t bytes = vmovn_u16(vcombine_u16(vmovn_u32((uint32x4_t)words), vdup_n_u16(0)));
    vst1_lane_u32(static_cast<uint32_t*>(to), vreinterpret_u32_u8(bytes), 0);
  }
};

#if !defined(__clang__)
#define HEED_DOT_BYTES __attribute__((target("arch=armv8.2-a+dotprod")))
#elif defined(__ARM_FEATURE_DOTPROD) || __clang_major__ >= 16  // before, the header hides them
#define HEED_DOT_BYTES __attribute__((target("dotprod")))
#endif
#ifdef HEED_DOT_BYTES
struct DotBytes : WholeSums {
  static constexpr int kOffset = 0;
  HEED_DOT_BYTES static HEED_INLINE Integers<float> add_products(Integers<float> sums, Integers<float> x,
                                                                 Integers<float> weights) {
    return vdotq_s32(sums, (int8x16_t)weights, (int8x16_t)x);
  }
  static inline bool supported() { return kDotProducts; }
};
#endif

}  // namespace HEED_ISA
}  // namespace heed
