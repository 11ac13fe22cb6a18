// One portable vector type. This file is included once for each instruction set, by isa_*.cc, which define
//   HEED_ISA            the namespace of that instruction set
//   HEED_VECTOR_BYTES   the width of its registers
// Nothing here or in kernels/ may use inline functions of the standard library: the linker keeps one copy of each, and
// it could be the one compiled for an instruction set that this machine lacks.
#pragma once

#include <cstddef>
#include <cstdint>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define HEED_INLINE inline __attribute__((always_inline))

namespace heed {
namespace HEED_ISA {

// Of float or double: a vector, what comparing two of them gives, and the numbers in that.
template <class Real>
struct Lanes {
  typedef Real Vector __attribute__((vector_size(HEED_VECTOR_BYTES)));
  typedef decltype(Vector{} < Vector{}) Integers;
  typedef decltype(+Integers{}[0]) Integer;
};

// How many there are.
#if HEED_VECTOR_BYTES == 64 || defined(__aarch64__)
inline constexpr int kRegisters = 32;
#else
inline constexpr int kRegisters = 16;
#endif
template <class Real>
inline constexpr int kLanes = HEED_VECTOR_BYTES / static_cast<int>(sizeof(Real));
template <class Real>
using Vector = typename Lanes<Real>::Vector;
template <class Real>
using Integers = typename Lanes<Real>::Integers;

template <class Real>
inline constexpr Real kInfinity = static_cast<Real>(__builtin_inf());
template <class Real>
inline constexpr Real kNaN = static_cast<Real>(__builtin_nan(""));
template <class Real>
inline constexpr Real kLog2E = static_cast<Real>(1.4426950408889634074);

template <class V, class Number>
HEED_INLINE V load_as(const Number* from) {
  V v;
  __builtin_memcpy(&v, from, sizeof(V));
  return v;
}
template <class Real>
HEED_INLINE Vector<Real> load(const Real* from) {
  return load_as<Vector<Real>>(from);
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

// 0, 1, 2, ...
template <class Real>
HEED_INLINE Vector<Real> lane_numbers() {
  Vector<Real> numbers{};
  for (int lane = 0; lane < kLanes<Real>; ++lane) numbers[lane] = static_cast<Real>(lane);
  return numbers;
}

// The larger of two; `b` where `a` is not a number.
template <class V>
HEED_INLINE V larger(V a, V b) {
  return a > b ? a : b;
}

// Whether a comparison holds in any lane.
template <class I>
HEED_INLINE bool any(I comparison) {
#if defined(__AVX512F__)
  if constexpr (sizeof(I) == 64) return _mm512_test_epi32_mask((__m512i)comparison, (__m512i)comparison) != 0;
#elif defined(__AVX2__)
  if constexpr (sizeof(I) == 32) return !_mm256_testz_si256((__m256i)comparison, (__m256i)comparison);
#endif
  int64_t words[sizeof(I) / 8], all = 0;
  __builtin_memcpy(words, &comparison, sizeof(I));
  for (int64_t word : words) all |= word;
  return all != 0;
}

// A bit for each lane of a comparison, the first lane's the lowest.
HEED_INLINE uint64_t bits_of(Integers<float> comparison) {
#if defined(__AVX512DQ__)
  return _mm512_movepi32_mask((__m512i)comparison);
#elif defined(__AVX2__)
  return static_cast<uint64_t>(_mm256_movemask_ps((__m256)comparison));
#else
  uint64_t bits = 0;
  for (int lane = 0; lane < kLanes<float>; ++lane) bits |= static_cast<uint64_t>(comparison[lane] & 1) << lane;
  return bits;
#endif
}

// What a comparison gives that holds in the lanes whose bits are set.
template <class Real>
HEED_INLINE Integers<Real> lanes_of(uint64_t bits) {
  Integers<Real> of_lane{};
  for (int lane = 0; lane < kLanes<Real>; ++lane) of_lane[lane] = typename Lanes<Real>::Integer(1) << lane;
  return (of_lane & static_cast<typename Lanes<Real>::Integer>(bits)) != 0;
}

template <class Real>
HEED_INLINE Real sum_of_lanes(Vector<Real> v) {
  Real numbers[kLanes<Real>];
  store(numbers, v);
  for (int half = kLanes<Real> / 2; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane) numbers[lane] += numbers[lane + half];
  return numbers[0];
}

// function(x) of each number: for what there are no vectors for.
template <class Function>
HEED_INLINE Vector<double> for_each_lane(Vector<double> x, const Function& function) {
  for (int lane = 0; lane < kLanes<double>; ++lane) x[lane] = function(x[lane]);
  return x;
}

// Horner's scheme, from the coefficient of the highest power on.
template <class V, class Real, class... Lower>
HEED_INLINE V polynomial(V x, Real highest, Lower... lower) {
  V sum = broadcast(highest);
  ((sum = sum * x + lower), ...);
  return sum;
}

// Adding 1.5 * 2^23 rounds to the nearest integer, which is in the lowest bits then.
inline constexpr float kRounder = 12582912.0f;

// 2^(n + f), given kRounder + n, for |f| <= 1/2.
HEED_INLINE Vector<float> power_of_two(Vector<float> rounded, Vector<float> f) {
  typedef Integers<float> I;
  // Minimax polynomial of 2^f.
  const auto p = polynomial(f, 1.535336188e-4f, 1.339887440e-3f, 9.618437357e-3f, 5.550332471e-2f, 2.402264791e-1f,
                            6.931472028e-1f, 1.0f);
  const I n = (I)rounded - (I)broadcast(kRounder);
  return p * (Vector<float>)((n + 127) << 23);
}

// 2^x, exactly 0 below 2^-126 where denormals are flushed (they would slow every product they meet), NaN for NaN.
#if defined(__AVX512DQ__)
HEED_INLINE Vector<float> exp2(Vector<float> x) {
  const Vector<float> f = _mm512_maskz_reduce_ps(0xffff, x, 1);  // x - floor(x)
  // Minimax polynomial of 2^f on [0, 1], exact at 0: 8e-8, as much as its roundings.
  const auto p =
      polynomial(f, 1.867130344e-3f, 9.017029740e-3f, 5.579991352e-2f, 2.401644500e-1f, 6.931513118e-1f, 1.0f);
  return _mm512_maskz_scalef_ps(0xffff, p, x);  // p * 2^floor(x)
}
// The same for weights that are rounded to bfloat16: 3e-6.
HEED_INLINE Vector<float> short_exp2(Vector<float> x) {
  const Vector<float> f = _mm512_maskz_reduce_ps(0xffff, x, 1);
  const auto p = polynomial(f, 1.342668662e-2f, 5.224247046e-2f, 2.412802065e-1f, 6.930448447e-1f, 1.0f);
  return _mm512_maskz_scalef_ps(0xffff, p, x);
}
#else
HEED_INLINE Vector<float> exp2(Vector<float> x) {
  typedef Vector<float> V;
  const V low = broadcast(-126.0f), high = broadcast(128.0f);
  V y = larger(low, x);
  y = high < y ? high : y;
  const V rounded = y + kRounder;
  return x < low ? V{} : power_of_two(rounded, y - (rounded - kRounder));  // infinite from 2^127.5 on
}
#endif

HEED_INLINE Vector<double> exp2(Vector<double> x) {
  return for_each_lane(x, [](double y) { return __builtin_exp2(y); });
}

// e^(2x) for |x| <= 43, to the last digit or so: 2x in units of log 2 alone would lose the digits of its whole part.
HEED_INLINE Vector<float> exp_of_twice(Vector<float> x) {
  typedef Vector<float> V;
  const V rounded = x * 2.885390082f + kRounder, n = rounded - kRounder;
  // log(2) / 2 in two parts, the first so short that its product is exact.
  const V rest = (x - n * 0.3466796875f) + n * 1.0609722e-4f;
  return power_of_two(rounded, rest * 2.885390082f);
}

HEED_INLINE Vector<double> exp_of_twice(Vector<double> x) {
  return for_each_lane(x, [](double y) { return __builtin_exp(2 * y); });
}

// 1 / x for 2^-125 < |x| < 2^125.
HEED_INLINE Vector<float> reciprocal(Vector<float> x) {
#if defined(__AVX512DQ__)
  // 14 bits, and twice as many by one step of Newton's: faster than a division here, unlike with narrower vectors.
  const Vector<float> guess = _mm512_maskz_rcp14_ps(0xffff, x);
  return guess + guess * (1.0f - x * guess);
#else
  return 1.0f / x;
#endif
}
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

template <class Real, int... kIndices>
HEED_INLINE Vector<Real> shuffled(Vector<Real> a, Vector<Real> b, Order<kIndices...>) {
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
      dealt[2 * r] = shuffled<Real>(a, b, Interleaved<kLanes<Real>, 0>{});
      dealt[2 * r + 1] = shuffled<Real>(a, b, Interleaved<kLanes<Real>, kLanes<Real> / 2>{});
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
      rows[r] = shuffled<Real>(a, b, Interleaved<kLanes<Real>, 0>{}) +
                shuffled<Real>(a, b, Interleaved<kLanes<Real>, kLanes<Real> / 2>{});
    }
  return rows[0];
}

}  // namespace HEED_ISA
}  // namespace heed
