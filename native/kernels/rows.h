// How the kernels beside attention go along a row of numbers.
#pragma once

#include "convert.h"
#include "registry.h"

namespace heed {
namespace HEED_ISA {

// function(column, how many lanes from there on are in the row), vector by vector over columns [begin, end).
template <class Real, class Function>
HEED_INLINE void along(int64_t begin, int64_t end, const Function& function) {
  int64_t column = begin;
  for (; column + kLanes<Real> <= end; column += kLanes<Real>) function(column, kLanes<Real>);
  if (column < end) function(column, static_cast<int>(end - column));
}

// The same vector with another number in the lanes that are past the row.
template <class Real>
HEED_INLINE Vector<Real> with_rest(Vector<Real> x, int count, Real rest) {
  if (count == kLanes<Real>) return x;
  Real numbers[kLanes<Real>];
  store(numbers, x);
  for (int lane = count; lane < kLanes<Real>; ++lane) numbers[lane] = rest;
  return load(numbers);
}

// The sum of what function(column, count) gives for each vector, each lane of its own. Long rows are summed in blocks
// and then the blocks: more accurate, and as fast.
template <class Real, class Function>
HEED_INLINE Vector<Real> summed(int64_t width, const Function& function) {
  constexpr int64_t kBlock = 4096;
  Vector<Real> total{};
  for (int64_t begin = 0; begin < width; begin += kBlock) {
    Vector<Real> sum{};
    along<Real>(begin, begin + kBlock < width ? begin + kBlock : width,
                [&](int64_t column, int count) { sum += with_rest<Real>(function(column, count), count, 0); });
    total += sum;
  }
  return total;
}

}  // namespace HEED_ISA
}  // namespace heed
