// AVX2 with fused multiply-add and conversions of float16: 16 registers of 32 bytes.
#pragma once

#include <immintrin.h>

#define HEED_VECTOR_BYTES 32
#include "portable.h"

namespace heed {
namespace HEED_ISA {

struct Simd : Portable {
  template <class I>
  static HEED_INLINE bool any(I comparison) {
    return !_mm256_testz_si256((__m256i)comparison, (__m256i)comparison);
  }

  static HEED_INLINE uint64_t bits_of(Integers<float> comparison) {
    return static_cast<uint64_t>(_mm256_movemask_ps((__m256)comparison));
  }

  static inline uint64_t zero_bytes(const uint8_t* from, int count) {
    uint64_t zero = 0;
    int y = 0;
    for (; y + 32 <= count; y += 32) {
      const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + y));
      const int found = _mm256_movemask_epi8(_mm256_cmpeq_epi8(bytes, _mm256_setzero_si256()));
      zero |= static_cast<uint64_t>(static_cast<uint32_t>(found)) << y;
    }
    for (; y < count; ++y) zero |= static_cast<uint64_t>(from[y] == 0) << y;
    return zero;
  }

  // The machine's conversions keep denormal numbers, even where threads flush them.
  static HEED_INLINE Vector<float> load_float16(const void* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(from)));
  }
  static HEED_INLINE void store_float16(void* to, Vector<float> x) {
    _mm_storeu_si128(static_cast<__m128i*>(to), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }
};

#if __GNUC__ >= 11 || __clang_major__ >= 12
#define HEED_DOT_BYTES __attribute__((target("avxvnni")))
struct DotBytes : WholeSums {
  static constexpr int kOffset = 128;  // weights are unsigned
  HEED_DOT_BYTES static HEED_INLINE Integers<float> add_products(Integers<float> sums, Integers<float> x,
                                                                 Integers<float> weights) {
    return (Integers<float>)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)weights, (__m256i)x);
  }
  static inline bool supported() { return __builtin_cpu_supports("avxvnni"); }
};
#endif

#define HEED_PAIR_BYTES
struct PairBytes : WholeSums {
  static constexpr int kOffset = 0;
  // The weights give their sign to the rows. Sums of two products do not saturate: 2 * 128 * 127 < 2^15.
  static HEED_INLINE Integers<float> add_products(Integers<float> sums, Integers<float> x, Integers<float> weights) {
    const __m256i w = (__m256i)weights, signed_x = _mm256_sign_epi8((__m256i)x, w);
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), signed_x);
    return sums + (Integers<float>)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  }
};
// Sums are of 16 bits until the end: 16 * 15 * 127 < 2^15.
struct PairNibbles {
  static HEED_INLINE Integers<float> begin(int32_t) { return Integers<float>{}; }
  static HEED_INLINE Integers<float> add_products(Integers<float> sums, Integers<float> x, Integers<float> weights) {
    return (Integers<float>)_mm256_add_epi16((__m256i)sums, _mm256_maddubs_epi16((__m256i)weights, (__m256i)x));
  }
  static HEED_INLINE Integers<float> end(Integers<float> sums, int32_t correction) {
    return (Integers<float>)_mm256_madd_epi16((__m256i)sums, _mm256_set1_epi16(1)) + correction;
  }
};
struct PairWords : WholeSums {
  static HEED_INLINE Integers<float> add_products(Integers<float> sums, Integers<float> x, Integers<float> weights) {
    return sums + (Integers<float>)_mm256_madd_epi16((__m256i)x, (__m256i)weights);
  }
};

}  // namespace HEED_ISA
}  // namespace heed
