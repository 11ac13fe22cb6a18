// One portable vector type. This file is included once for each instruction set, by isa_*.cc, which define
//   HEED_ISA            the namespace of that instruction set
//   HEED_VECTOR_BYTES   the width of its registers
//   HEED_REGISTERS      how many of them there are
// Nothing here or in kernels/ may use inline functions of the standard library: the linker keeps one copy of each, and
// it could be the one compiled for an instruction set that this machine lacks.
#pragma once

#include <cstddef>
#include <cstdint>
#if defined(__AVX512DQ__)
#include <immintrin.h>
#endif

#define HEED_INLINE inline __attribute__((always_inline))

namespace heed {
namespace HEED_ISA {

template <class Real>
struct Lanes;

template <>
struct Lanes<float> {
  typedef float Vector __attribute__((vector_size(HEED_VECTOR_BYTES)));
  typedef int32_t Integer;
  typedef int32_t Integers __attribute__((vector_size(HEED_VECTOR_BYTES)));
  typedef uint32_t Words __attribute__((vector_size(HEED_VECTOR_BYTES)));
  static constexpr int kCount = HEED_VECTOR_BYTES / 4;
};

template <>
struct Lanes<double> {
  typedef double Vector __attribute__((vector_size(HEED_VECTOR_BYTES)));
  typedef int64_t Integer;
  typedef int64_t Integers __attribute__((vector_size(HEED_VECTOR_BYTES)));
  static constexpr int kCount = HEED_VECTOR_BYTES / 8;
};

template <class Real>
using Vector = typename Lanes<Real>::Vector;
template <class Real>
using Integers = typename Lanes<Real>::Integers;

template <class V, class Real>
HEED_INLINE V load(const Real* from) {
  V v;
  __builtin_memcpy(&v, from, sizeof(V));
  return v;
}

template <class V, class Real>
HEED_INLINE void store(Real* to, V v) {
  __builtin_memcpy(to, &v, sizeof(V));
}

// Not 0 + x, which compilers must compute: it is not x for x = -0. x - 0 always is.
template <class Real>
HEED_INLINE Vector<Real> broadcast(Real x) {
  return x - Vector<Real>{};
}

// The larger of two; `b` where `a` is not a number.
template <class V>
HEED_INLINE V larger(V a, V b) {
  return a > b ? a : b;
}

// Whether a comparison holds in any lane.
template <class I>
HEED_INLINE bool any(I comparison) {
  int64_t words[sizeof(I) / 8], all = 0;
  __builtin_memcpy(words, &comparison, sizeof(I));
  for (int64_t word : words) all |= word;
  return all != 0;
}

template <class Real>
HEED_INLINE Real sum_of_lanes(Vector<Real> v) {
  Real numbers[Lanes<Real>::kCount];
  store(numbers, v);
  for (int half = Lanes<Real>::kCount / 2; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane) numbers[lane] += numbers[lane + half];
  return numbers[0];
}

// 2^x, exactly 0 below 2^-126 where denormals are flushed (they would slow every product they meet), NaN for NaN.
#if defined(__AVX512DQ__)
HEED_INLINE Vector<float> exp2(Vector<float> x) {
  typedef Vector<float> V;
  const V f = _mm512_maskz_reduce_ps(0xffff, x, 1);  // x - floor(x)
  // Minimax polynomial of 2^f on [0, 1].
  V p = broadcast(2.161291987e-4f);
  p = p * f + 1.246784515e-3f;
  p = p * f + 9.675451694e-3f;
  p = p * f + 5.548528056e-2f;
  p = p * f + 2.402293056e-1f;
  p = p * f + 6.931470444e-1f;
  p = p * f + 1.0f;
  return _mm512_maskz_scalef_ps(0xffff, p, x);  // p * 2^floor(x)
}
#else
HEED_INLINE Vector<float> exp2(Vector<float> x) {
  typedef Vector<float> V;
  typedef Integers<float> I;
  const V low = broadcast(-126.0f), high = broadcast(128.0f);
  V y = larger(low, x);
  y = high < y ? high : y;
  // Adding and taking away 1.5 * 2^23 rounds to the nearest integer.
  const V magic = broadcast(12582912.0f);
  V rounded = y + magic;
  const I n = (I)rounded - (I)magic;
  rounded = rounded - magic;
  const V f = y - rounded;  // in [-1/2, 1/2]
  // Minimax polynomial of 2^f.
  V p = broadcast(1.535336188e-4f);
  p = p * f + 1.339887440e-3f;
  p = p * f + 9.618437357e-3f;
  p = p * f + 5.550332471e-2f;
  p = p * f + 2.402264791e-1f;
  p = p * f + 6.931472028e-1f;
  p = p * f + 1.0f;
  const V result = p * (V)((n + 127) << 23);  // infinite from 2^127.5 on
  return x < low ? V{} : result;
}
#endif

HEED_INLINE Vector<double> exp2(Vector<double> x) {
  Vector<double> y{};
  for (int lane = 0; lane < Lanes<double>::kCount; ++lane) y[lane] = __builtin_exp2(x[lane]);
  return y;
}

// tanh, for the soft cap: a polynomial near 0, where 1 - 2 / (1 + e^2x) would lose digits.
HEED_INLINE Vector<float> tanh(Vector<float> x) {
  typedef Vector<float> V;
  const V magnitude = x < 0 ? -x : x;
  const V z = x * x;
  V p = broadcast(-5.70498872745e-3f);
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const V near = x + x * z * p;
  const V bounded = magnitude > 10.0f ? broadcast(10.0f) : magnitude;
  const V e = exp2(bounded * 2.885390082f);
  const V far = 1.0f - 2.0f / (1.0f + e);
  const V signed_far = x < 0 ? -far : far;
  return magnitude < 0.625f ? near : (x == x ? signed_far : x);
}

HEED_INLINE float natural_log(float x) { return __builtin_logf(x); }
HEED_INLINE double natural_log(double x) { return __builtin_log(x); }

HEED_INLINE Vector<double> tanh(Vector<double> x) {
  Vector<double> y{};
  for (int lane = 0; lane < Lanes<double>::kCount; ++lane) y[lane] = __builtin_tanh(x[lane]);
  return y;
}

}  // namespace HEED_ISA
}  // namespace heed
