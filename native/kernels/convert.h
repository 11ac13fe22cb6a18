// Numbers as they lie in memory, and as they are computed with: float for all but double.
#pragma once

#include "../simd/vector.h"

namespace heed {
namespace HEED_ISA {

struct Bfloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

template <class Stored>
struct Compute {
  typedef float Type;
};
template <>
struct Compute<double> {
  typedef double Type;
};

template <class Real>
HEED_INLINE bool is_finite(Real x) {
  return x - x == 0;
}

typedef uint16_t Halves __attribute__((vector_size(HEED_VECTOR_BYTES / 2)));
typedef uint32_t Words __attribute__((vector_size(HEED_VECTOR_BYTES)));

HEED_INLINE Words load_halves(const void* from) {
  Halves halves;
  __builtin_memcpy(&halves, from, sizeof(Halves));
  return __builtin_convertvector(halves, Words);
}
HEED_INLINE void store_halves(void* to, Words words) {
  const Halves halves = __builtin_convertvector(words, Halves);
  __builtin_memcpy(to, &halves, sizeof(Halves));
}

HEED_INLINE Vector<float> load_wide(const float* from) { return load(from); }
HEED_INLINE Vector<double> load_wide(const double* from) { return load(from); }
HEED_INLINE Vector<float> load_wide(const Bfloat16* from) { return (Vector<float>)(load_halves(from) << 16); }
#if defined(__F16C__) || defined(__AVX512F__)
// The machine's own conversions, for which no denormal number is 0 whatever threads flush.
HEED_INLINE Vector<float> load_wide(const Float16* from) {
#if HEED_VECTOR_BYTES == 64
  return _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#else
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#endif
}
#else
HEED_INLINE Vector<float> load_wide(const Float16* from) {
  const Words x = load_halves(from), sign = (x & 0x8000u) << 16, rest = x & 0x7fffu;
  // Denormal numbers are counted in steps of 2^-24, as threads may flush denormal floats to zero.
  const Vector<float> denormal = __builtin_convertvector(rest, Vector<float>) * 5.9604644775390625e-8f;
  const Words special = 0x7f800000u | (rest & 0x3ffu) << 13, normal = (rest << 13) + 0x38000000u;
  return (Vector<float>)(sign | (rest >= 0x7c00u ? special : rest < 0x400u ? (Words)denormal : normal));
}
#endif

HEED_INLINE void store_narrow(float* to, Vector<float> x) { store(to, x); }
HEED_INLINE void store_narrow(double* to, Vector<double> x) { store(to, x); }
// To the nearest, ties to even.
HEED_INLINE void store_narrow(Bfloat16* to, Vector<float> x) {
  const Words bits = (Words)x;
  store_halves(to, x != x ? (bits >> 16 | 0x40u) : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
#if defined(__F16C__) || defined(__AVX512F__)
HEED_INLINE void store_narrow(Float16* to, Vector<float> x) {
#if HEED_VECTOR_BYTES == 64
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_maskz_cvtps_ph(0xffff, x, _MM_FROUND_TO_NEAREST_INT));
#else
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
#endif
}
#else
HEED_INLINE void store_narrow(Float16* to, Vector<float> x) {
  const Words bits = (Words)x, sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  // Adding 1/2 lets the float adder round at the right place.
  const Words denormal = (Words)((Vector<float>)magnitude + 0.5f) - 0x3f000000u;
  const Words normal = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  const Words finite = magnitude < 0x38800000u ? denormal : normal;
  const Words infinite = magnitude > 0x7f800000u ? Words{} + 0x7e00u : Words{} + 0x7c00u;
  store_halves(to, sign | (magnitude >= 0x477ff000u ? infinite : finite));
}
#endif

// Up to one vector of numbers, 0 after the first `count`.
template <class Stored, class Real = typename Compute<Stored>::Type>
HEED_INLINE Vector<Real> load_some(const Stored* from, int count) {
  if (count >= kLanes<Real>) return load_wide(from);
  Stored numbers[kLanes<Real>] = {};
  for (int lane = 0; lane < count; ++lane) numbers[lane] = from[lane];
  return load_wide(numbers);
}
template <class Stored, class Real = typename Compute<Stored>::Type>
HEED_INLINE void store_some(Stored* to, int count, Vector<Real> x) {
  if (count >= kLanes<Real>) return store_narrow(to, x);
  Stored numbers[kLanes<Real>];
  store_narrow(numbers, x);
  for (int lane = 0; lane < count; ++lane) to[lane] = numbers[lane];
}

}  // namespace HEED_ISA
}  // namespace heed
