// Conversion between the dtypes in memory and the compute type: double for double, else float.
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

HEED_INLINE Vector<float> load_wide(const float* from) { return load(from); }
HEED_INLINE Vector<double> load_wide(const double* from) { return load(from); }
HEED_INLINE Vector<float> load_wide(const Bfloat16* from) { return Simd::load_bfloat16(from); }
HEED_INLINE Vector<float> load_wide(const Float16* from) { return Simd::load_float16(from); }

HEED_INLINE void store_narrow(float* to, Vector<float> x) { store(to, x); }
HEED_INLINE void store_narrow(double* to, Vector<double> x) { store(to, x); }
// To the nearest, ties to even.
HEED_INLINE void store_narrow(Bfloat16* to, Vector<float> x) {
  const Words bits = (Words)x;
  store_halves(to, x != x ? (bits >> 16 | 0x40u) : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
HEED_INLINE void store_narrow(Float16* to, Vector<float> x) { Simd::store_float16(to, x); }

// Loads and stores up to one vector of numbers; lanes from `count` on are 0, or not stored.
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
