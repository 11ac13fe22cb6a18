// AVX-512 (F, BW, DQ, VL): 32 registers of 64 bytes.
#pragma once

#include <immintrin.h>

#define HEED_VECTOR_BYTES 64
#include "portable.h"

namespace heed {
namespace HEED_ISA {

struct Simd : Portable {
  static constexpr int kRegisters = 32;

  template <class I>
  static HEED_INLINE bool any(I comparison) {
    return _mm512_test_epi32_mask((__m512i)comparison, (__m512i)comparison) != 0;
  }

  static HEED_INLINE uint64_t bits_of(Integers<float> comparison) { return _mm512_movepi32_mask((__m512i)comparison); }

  static inline uint64_t zero_bytes(const uint8_t* from, int count) {
    const __mmask64 there = bits_below(count);
    const __m512i bytes = _mm512_maskz_loadu_epi8(there, from);
    return _mm512_mask_testn_epi8_mask(there, bytes, bytes);
  }

  static HEED_INLINE Vector<float> exp2(Vector<float> x) {
    const Vector<float> f = _mm512_maskz_reduce_ps(0xffff, x, 1);  // x - floor(x)
    // Minimax polynomial of 2^f on [0, 1], exact at 0: 8e-8, as much as its roundings.
    const auto p =
        polynomial(f, 1.867130344e-3f, 9.017029740e-3f, 5.579991352e-2f, 2.401644500e-1f, 6.931513118e-1f, 1.0f);
    return _mm512_maskz_scalef_ps(0xffff, p, x);  // p * 2^floor(x)
  }
  // Within 3e-6.
  static HEED_INLINE Vector<float> short_exp2(Vector<float> x) {
    const Vector<float> f = _mm512_maskz_reduce_ps(0xffff, x, 1);
    const auto p = polynomial(f, 1.342668662e-2f, 5.224247046e-2f, 2.412802065e-1f, 6.930448447e-1f, 1.0f);
    return _mm512_maskz_scalef_ps(0xffff, p, x);
  }

  // 14 bits, doubled by one Newton step: faster than a division here, unlike with narrower vectors.
  static HEED_INLINE Vector<float> reciprocal(Vector<float> x) {
    const Vector<float> guess = _mm512_maskz_rcp14_ps(0xffff, x);
    return guess + guess * (1.0f - x * guess);
  }

  // The machine's conversions keep denormal numbers, even where threads flush them.
  static HEED_INLINE Vector<float> load_float16(const void* from) {
    return _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(static_cast<const __m256i*>(from)));
  }
  static HEED_INLINE void store_float16(void* to, Vector<float> x) {
    _mm256_storeu_si256(static_cast<__m256i*>(to), _mm512_maskz_cvtps_ph(0xffff, x, _MM_FROUND_TO_NEAREST_INT));
  }
};

#define HEED_DOT_BYTES __attribute__((target("avx512vnni")))
struct DotBytes : WholeSums {
  static constexpr int kOffset = 128;  // weights are unsigned
  HEED_DOT_BYTES static HEED_INLINE Integers<float> add_products(Integers<float> sums, Integers<float> x,
                                                                 Integers<float> weights) {
    return (Integers<float>)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)weights, (__m512i)x);
  }
  static inline bool supported() { return __builtin_cpu_supports("avx512vnni"); }
};

#define HEED_PAIR_BYTES
struct PairBytes : WholeSums {
  static constexpr int kOffset = 0;
  // The weights give their sign to the rows. Sums of two products do not saturate: 2 * 128 * 127 < 2^15.
  static HEED_INLINE Integers<float> add_products(Integers<float> sums, Integers<float> x, Integers<float> weights) {
    const __m512i w = (__m512i)weights, zero = _mm512_setzero_si512();
    const __m512i signed_x = _mm512_mask_sub_epi8((__m512i)x, _mm512_movepi8_mask(w), zero, (__m512i)x);
    const __m512i magnitude = _mm512_maskz_abs_epi8(~__mmask64{0}, w);
    return sums + (Integers<float>)_mm512_madd_epi16(_mm512_maddubs_epi16(magnitude, signed_x), _mm512_set1_epi16(1));
  }
};
// Sums are of 16 bits until the end: 16 * 15 * 127 < 2^15.
struct PairNibbles {
  static HEED_INLINE Integers<float> begin(int32_t) { return Integers<float>{}; }
  static HEED_INLINE Integers<float> add_products(Integers<float> sums, Integers<float> x, Integers<float> weights) {
    return (Integers<float>)_mm512_add_epi16((__m512i)sums, _mm512_maddubs_epi16((__m512i)weights, (__m512i)x));
  }
  static HEED_INLINE Integers<float> end(Integers<float> sums, int32_t correction) {
    return (Integers<float>)_mm512_madd_epi16((__m512i)sums, _mm512_set1_epi16(1)) + correction;
  }
};
struct PairWords : WholeSums {
  static HEED_INLINE Integers<float> add_products(Integers<float> sums, Integers<float> x, Integers<float> weights) {
    return sums + (Integers<float>)_mm512_madd_epi16((__m512i)x, (__m512i)weights);
  }
};

}  // namespace HEED_ISA
}  // namespace heed
