// Functions of any argument, for programs: NaN gives NaN, and results beyond the range are infinite or 0, as IEEE says.
// Of float within 2 units in the last place where no other bound is given; of double those of the C library, lane by
// lane.
#pragma once

#include "vector.h"

namespace heed {
namespace HEED_ISA {

// function(x) of each number, or function(x, y).
template <class Real, class Function>
HEED_INLINE Vector<Real> map_lanes(Vector<Real> x, const Function& function) {
  Real numbers[kLanes<Real>];
  store(numbers, x);
  for (int lane = 0; lane < kLanes<Real>; ++lane) numbers[lane] = function(numbers[lane]);
  return load(numbers);
}
template <class Real, class Function>
HEED_INLINE Vector<Real> map_lanes(Vector<Real> x, Vector<Real> y, const Function& function) {
  Real numbers[kLanes<Real>], others[kLanes<Real>];
  store(numbers, x);
  store(others, y);
  for (int lane = 0; lane < kLanes<Real>; ++lane) numbers[lane] = function(numbers[lane], others[lane]);
  return load(numbers);
}

template <class Real>
HEED_INLINE Vector<Real> absolute(Vector<Real> x) {
  typedef Integers<Real> I;
  return (Vector<Real>)((I)x & ~((I)broadcast(Real(-0.0))));
}
template <class Real>
HEED_INLINE Vector<Real> with_sign_of(Vector<Real> magnitude, Vector<Real> sign) {
  typedef Integers<Real> I;
  return (Vector<Real>)((I)magnitude | ((I)sign & (I)broadcast(Real(-0.0))));
}

template <class Real>
HEED_INLINE Vector<Real> square_root(Vector<Real> x) {
  return map_lanes<Real>(x, [](Real y) -> Real {
    return sizeof(Real) == 4 ? static_cast<Real>(__builtin_sqrtf(static_cast<float>(y))) : __builtin_sqrt(y);
  });
}

// To the nearest integer, halves to even; exact.
template <class Real>
HEED_INLINE Vector<Real> round_to_integer(Vector<Real> x) {
  constexpr Real kWhole = sizeof(Real) == 4 ? Real(8388608.0) : Real(4503599627370496.0);  // larger ones are integers
  const Vector<Real> magnitude = absolute<Real>(x), rounded = (magnitude + kWhole) - kWhole;
  return magnitude < kWhole ? with_sign_of<Real>(rounded, x) : x;
}
template <class Real>
HEED_INLINE Vector<Real> round_down(Vector<Real> x) {
  const Vector<Real> rounded = round_to_integer<Real>(x);
  return rounded > x ? rounded - 1 : rounded;
}
template <class Real>
HEED_INLINE Vector<Real> round_up_to_integer(Vector<Real> x) {
  return -round_down<Real>(-x);
}

// e^x
HEED_INLINE Vector<float> exp_of(Vector<float> x) {
  typedef Vector<float> V;
  typedef Integers<float> I;
  const V bounded = x > 89.0f ? broadcast(89.0f) : x < -104.0f ? broadcast(-104.0f) : x;
  const V rounded = bounded * kLog2E<float> + kRounder, n = rounded - kRounder;
  // log(2) in two parts, the first so short that its product is exact.
  const V f = ((bounded - n * 0.693359375f) + n * 2.12194440e-4f) * kLog2E<float>;
  const V p = polynomial(f, 1.535336188e-4f, 1.339887440e-3f, 9.618437357e-3f, 5.550332471e-2f, 2.402264791e-1f,
                         6.931472028e-1f, 1.0f);
  // Twice half the exponent: it may be beyond that of any number.
  const I exponent = (I)rounded - (I)broadcast(kRounder), half = exponent >> 1;
  return p * (V)((half + 127) << 23) * (V)((exponent - half + 127) << 23);
}
HEED_INLINE Vector<double> exp_of(Vector<double> x) {
  return for_each_lane(x, [](double y) { return __builtin_exp(y); });
}

// log x
HEED_INLINE Vector<float> log_of(Vector<float> x) {
  typedef Vector<float> V;
  const auto denormal = x < 1.17549435e-38f;
  const V log = natural_log(denormal ? x * 33554432.0f : x);
  const V positive = denormal ? log - 17.3286795f : log;
  return x > 0 ? positive : (x == 0 ? broadcast(-kInfinity<float>) : broadcast(kNaN<float>));
}
HEED_INLINE Vector<double> log_of(Vector<double> x) {
  return for_each_lane(x, [](double y) { return __builtin_log(y); });
}

// log(1 + x): the error of 1 + x is made up for by the factor.
HEED_INLINE Vector<float> log1p_of(Vector<float> x) {
  const Vector<float> u = 1 + x, log = log_of(u);
  return u == 1 ? x : (x > 3e38f || u <= 0 ? log : log * (x / (u - 1)));
}
HEED_INLINE Vector<double> log1p_of(Vector<double> x) {
  return for_each_lane(x, [](double y) { return __builtin_log1p(y); });
}

// e^x - 1: tanh(x / 2) (e^x + 1) loses no digits near 0.
HEED_INLINE Vector<float> expm1_of(Vector<float> x) {
  const Vector<float> e = exp_of(x);
  return absolute<float>(x) < 1.0f ? tanh_near_zero(x * 0.5f) * (e + 1) : e - 1;
}
HEED_INLINE Vector<double> expm1_of(Vector<double> x) {
  return for_each_lane(x, [](double y) { return __builtin_expm1(y); });
}

// The sine, or the cosine, within 2e-7 of the true one: x less the nearest multiple of pi / 2.
template <bool kCosine>
HEED_INLINE Vector<float> sine_of(Vector<float> x) {
  typedef Vector<float> V;
  typedef Integers<float> I;
  // Beyond this the parts of pi / 2 are too few.
  if (any(!(absolute<float>(x) < 8192.0f)))
    return map_lanes<float>(x, [](float y) { return kCosine ? __builtin_cosf(y) : __builtin_sinf(y); });
  const V rounded = x * 0.636619772f + kRounder, n = rounded - kRounder;
  const V r = ((x - n * 1.5703125f) - n * 4.837512969970703125e-4f) - n * 7.54978995489188216e-8f, z = r * r;
  const V sine = r + r * z * polynomial(z, -1.9515295891e-4f, 8.3321608736e-3f, -1.6666654611e-1f);
  const V cosine =
      1 - 0.5f * z + z * z * polynomial(z, 2.443315711809948e-5f, -1.388731625493765e-3f, 4.166664568298827e-2f);
  const I quarter = (I)rounded + (kCosine ? 1 : 0);
  const V result = (quarter & 1) != 0 ? cosine : sine;
  return (quarter & 2) != 0 ? -result : result;
}
template <bool kCosine>
HEED_INLINE Vector<double> sine_of(Vector<double> x) {
  return for_each_lane(x, [](double y) { return kCosine ? __builtin_cos(y) : __builtin_sin(y); });
}

template <class Real>
HEED_INLINE Vector<Real> erf_of(Vector<Real> x) {
  return map_lanes<Real>(x, [](Real y) -> Real {
    return sizeof(Real) == 4 ? static_cast<Real>(__builtin_erff(static_cast<float>(y))) : __builtin_erf(y);
  });
}

template <class Real>
HEED_INLINE Vector<Real> power_of(Vector<Real> x, Vector<Real> y) {
  return map_lanes<Real>(x, y, [](Real a, Real b) -> Real {
    return sizeof(Real) == 4 ? static_cast<Real>(__builtin_powf(static_cast<float>(a), static_cast<float>(b)))
                             : __builtin_pow(a, b);
  });
}

// The remainder of a division that rounds down: it has the sign of y.
template <class Real>
HEED_INLINE Vector<Real> remainder_of(Vector<Real> x, Vector<Real> y) {
  return map_lanes<Real>(x, y, [](Real a, Real b) -> Real {
    const Real rest = sizeof(Real) == 4
                          ? static_cast<Real>(__builtin_fmodf(static_cast<float>(a), static_cast<float>(b)))
                          : __builtin_fmod(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
  });
}

}  // namespace HEED_ISA
}  // namespace heed
