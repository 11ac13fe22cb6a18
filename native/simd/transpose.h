// A square of vectors, rows and columns exchanged, in registers.
#pragma once

#include "vector.h"

namespace heed {
namespace HEED_ISA {

template <int... kIndices>
struct Order {};

// Which lanes of (a, b) interleave them, from lane `kFrom` of each on: kFrom, n + kFrom, kFrom + 1, n + kFrom + 1, ...
template <int kCount, int kFrom, int kAt = kCount, int... kIndices>
struct Interleaved
    : Interleaved<kCount, kFrom, kAt - 1, ((kAt - 1) % 2 * kCount + kFrom + (kAt - 1) / 2), kIndices...> {};
template <int kCount, int kFrom, int... kIndices>
struct Interleaved<kCount, kFrom, 0, kIndices...> {
  typedef Order<kIndices...> Type;
};

template <class Real, int... kIndices>
HEED_INLINE Vector<Real> shuffled(Vector<Real> a, Vector<Real> b, Order<kIndices...>) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, kIndices...);
#else
  return __builtin_shuffle(a, b, Integers<Real>{kIndices...});
#endif
}

// Dealing the first and the second half of the rows alternately, log2(n) times, sends lane c of row r to lane r of
// row c.
template <class Real>
HEED_INLINE void transpose(Vector<Real>* rows) {
  typedef Vector<Real> V;
#pragma GCC unroll 4
  for (int stage = 1; stage < kLanes<Real>; stage *= 2) {
    V dealt[kLanes<Real>];
#pragma GCC unroll 16
    for (int r = 0; r < kLanes<Real> / 2; ++r) {
      const V a = rows[r], b = rows[r + kLanes<Real> / 2];
      dealt[2 * r] = shuffled<Real>(a, b, typename Interleaved<kLanes<Real>, 0>::Type{});
      dealt[2 * r + 1] = shuffled<Real>(a, b, typename Interleaved<kLanes<Real>, kLanes<Real> / 2>::Type{});
    }
#pragma GCC unroll 16
    for (int r = 0; r < kLanes<Real>; ++r) rows[r] = dealt[r];
  }
}

}  // namespace HEED_ISA
}  // namespace heed
