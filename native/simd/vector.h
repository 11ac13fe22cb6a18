// One vector type and its mathematics. Kernels include this file, which is compiled once for each instruction set by
// isa_*.cc. These define
//   HEED_ISA   the namespace of the instruction set
//   HEED_SIMD  its header in this folder
// Nothing here or in kernels/ may use inline functions of the standard library: the linker keeps one copy of each, and
// it could be the one compiled for an instruction set that this machine lacks.
#pragma once

#include HEED_SIMD

namespace heed {
namespace HEED_ISA {

inline constexpr int kRegisters = Simd::kRegisters;

// Whether a comparison holds in any lane.
template <class I>
HEED_INLINE bool any(I comparison) {
  return Simd::any(comparison);
}

template <class Real>
HEED_INLINE Real sum_of_lanes(Vector<Real> v) {
  Real numbers[kLanes<Real>];
  store(numbers, v);
  for (int half = kLanes<Real> / 2; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane) numbers[lane] += numbers[lane + half];
  return numbers[0];
}

// The largest of numbers that are at least 0.
HEED_INLINE float largest_lane(Vector<float> v) {
  float numbers[kLanes<float>];
  store(numbers, v);
  for (int half = kLanes<float> / 2; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane)
      numbers[lane] = numbers[lane] > numbers[lane + half] ? numbers[lane] : numbers[lane + half];
  return numbers[0];
}

HEED_INLINE int32_t sum_of_integers(Integers<float> v) {
  int32_t numbers[kLanes<float>];
  store(numbers, v);
  for (int half = kLanes<float> / 2; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane) numbers[lane] += numbers[lane + half];
  return numbers[0];
}

// function(x) of each number: for functions without a vector form.
template <class Function>
HEED_INLINE Vector<double> for_each_lane(Vector<double> x, const Function& function) {
  for (int lane = 0; lane < kLanes<double>; ++lane) x[lane] = function(x[lane]);
  return x;
}

// 2^x for x < 128.5, as large as probabilities and factors of sums ever need.
HEED_INLINE Vector<float> exp2(Vector<float> x) { return Simd::exp2(x); }
HEED_INLINE Vector<double> exp2(Vector<double> x) {
  return for_each_lane(x, [](double y) { return __builtin_exp2(y); });
}

// e^(2x) for |x| <= 43, to the last digit or so: 2x in units of log 2 alone would lose the digits of its whole part.
HEED_INLINE Vector<float> exp_of_twice(Vector<float> x) {
  typedef Vector<float> V;
  const V rounded = x * 2.885390082f + kExponentRounder, n = rounded - kExponentRounder;
  // log(2) / 2 in two parts, the first so short that its product is exact.
  const V f = ((x - n * 0.3466796875f) + n * 1.0609722e-4f) * 2.885390082f;
  // Minimax polynomial of 2^f on [-1/2, 1/2]: 2e-9.
  const auto p = polynomial(f, 1.535336188e-4f, 1.339887440e-3f, 9.618437357e-3f, 5.550332471e-2f, 2.402264791e-1f,
                            6.931472028e-1f, 1.0f);
  return scale_by_power(p, rounded);
}

HEED_INLINE Vector<double> exp_of_twice(Vector<double> x) {
  return for_each_lane(x, [](double y) { return __builtin_exp(2 * y); });
}

HEED_INLINE Vector<float> reciprocal(Vector<float> x) { return Simd::reciprocal(x); }
HEED_INLINE Vector<double> reciprocal(Vector<double> x) { return 1.0 / x; }

// tanh for |x| <= 0.625, where 1 - 2 / (1 + e^2x) would lose digits: minimax polynomials.
HEED_INLINE Vector<float> tanh_near_zero(Vector<float> x) {
  const Vector<float> z = x * x;
  return x + x * z * polynomial(z, -5.70498699e-3f, 2.06390872e-2f, -5.37397151e-2f, 1.33314422e-1f, -3.33332819e-1f);
}

HEED_INLINE Vector<double> tanh_near_zero(Vector<double> x) {
  const Vector<double> z = x * x;
  const auto p =
      polynomial(z, -1.60725495742991521e-5, 7.71443209279453759e-5, -2.28564165984223011e-4, 5.86316514993550716e-4,
                 -1.45495886907819544e-3, 3.59198917178236738e-3, -8.86322100232874626e-3, 2.18694875760661814e-2,
                 -5.39682539312661088e-2, 1.33333333332620867e-1, -3.33333333333328552e-1);
  return x + x * z * p;
}

// tanh for any x.
template <class Real>
HEED_INLINE Vector<Real> tanh(Vector<Real> x) {
  typedef Vector<Real> V;
  constexpr Real kNear = Real(0.625);
  const V magnitude = x < 0 ? -x : x, end = broadcast(Real(sizeof(Real) == 4 ? 10 : 20));  // 1 to the last digit beyond
  if (!any(magnitude >= kNear)) return tanh_near_zero(x);  // as most scores are beside their cap
  const V far = 1 - 2 * reciprocal(1 + exp_of_twice(magnitude > end ? end : magnitude));
  const V signed_far = x < 0 ? -far : far;
  return magnitude < kNear ? tanh_near_zero(x) : (x == x ? signed_far : x);
}

// Natural logarithm of positive numbers of at least 2^-126; infinity and NaN stay what they are.
HEED_INLINE Vector<float> natural_log(Vector<float> x) {
  typedef Vector<float> V;
  typedef Integers<float> I;
  // x = 2^n m with m in [2/3, 4/3), and log(m) = 2 artanh(s).
  const I n = ((I)x - 0x3f2aaaab) >> 23;
  const V m = (V)((I)x - (n << 23)), whole = __builtin_convertvector(n, V);
  const V s = (m - 1) / (m + 1), z = s * s;
  const V p = polynomial(z, 2.0f / 9, 2.0f / 7, 2.0f / 5, 2.0f / 3);
  // log(2) in two parts, the first so short that its product is exact.
  const V log = whole * 0.693359375f + (2 * s + (p * z * s - whole * 2.12194440e-4f));
  return x - x == 0 ? log : x;
}
HEED_INLINE Vector<double> natural_log(Vector<double> x) {
  return for_each_lane(x, [](double y) { return __builtin_log(y); });
}
HEED_INLINE float natural_log(float x) { return __builtin_logf(x); }
HEED_INLINE double natural_log(double x) { return __builtin_log(x); }

template <int... kIndices>
struct Order {};

// Which lanes of (a, b) interleave them, from lane `kFrom` of each on: kFrom, n + kFrom, kFrom + 1, n + kFrom + 1, ...
template <int kCount, int kFrom, int kAt = kCount, int... kIndices>
struct Interleaved
    : Interleaved<kCount, kFrom, kAt - 1, ((kAt - 1) % 2 * kCount + kFrom + (kAt - 1) / 2), kIndices...> {};
template <int kCount, int kFrom, int... kIndices>
struct Interleaved<kCount, kFrom, 0, kIndices...> : Order<kIndices...> {};

// Which lanes of a vector reverse it.
template <int kCount, int... kIndices>
struct Reversed : Reversed<kCount - 1, kIndices..., kCount - 1> {};
template <int... kIndices>
struct Reversed<0, kIndices...> : Order<kIndices...> {};

template <class Real, int... kIndices>
HEED_INLINE Vector<Real> shuffle(Vector<Real> a, Vector<Real> b, Order<kIndices...>) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, kIndices...);
#else
  return __builtin_shuffle(a, b, Integers<Real>{kIndices...});
#endif
}

// A square of vectors, rows and columns exchanged: dealing the first and the second half of the rows alternately,
// log2(n) times, sends lane c of row r to lane r of row c.
template <class Real>
HEED_INLINE void transpose(Vector<Real>* rows) {
  typedef Vector<Real> V;
#pragma GCC unroll 4
  for (int stage = 1; stage < kLanes<Real>; stage *= 2) {
    V dealt[kLanes<Real>];
#pragma GCC unroll 16
    for (int r = 0; r < kLanes<Real> / 2; ++r) {
      const V a = rows[r], b = rows[r + kLanes<Real> / 2];
      dealt[2 * r] = shuffle<Real>(a, b, Interleaved<kLanes<Real>, 0>{});
      dealt[2 * r + 1] = shuffle<Real>(a, b, Interleaved<kLanes<Real>, kLanes<Real> / 2>{});
    }
#pragma GCC unroll 16
    for (int r = 0; r < kLanes<Real>; ++r) rows[r] = dealt[r];
  }
}

// Lane r of the result is the sum of all lanes of rows[r]; leaves other numbers in `rows`. Each stage adds the halves
// of two rows and lets the sums alternate, so that half as many rows and lanes of each remain.
template <class Real>
HEED_INLINE Vector<Real> sums_of_lanes(Vector<Real>* rows) {
#pragma GCC unroll 4
  for (int left = kLanes<Real> / 2; left > 0; left /= 2)
#pragma GCC unroll 16
    for (int r = 0; r < left; ++r) {
      const Vector<Real> a = rows[r], b = rows[r + left];
      rows[r] = shuffle<Real>(a, b, Interleaved<kLanes<Real>, 0>{}) +
                shuffle<Real>(a, b, Interleaved<kLanes<Real>, kLanes<Real> / 2>{});
    }
  return rows[0];
}

}  // namespace HEED_ISA
}  // namespace heed
