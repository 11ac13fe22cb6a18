// Loops over a row of numbers, for the fused row-wise ops.
#pragma once

#include "convert.h"
#include "registry.h"

namespace heed {
namespace HEED_ISA {

// Calls function(column, count) for each vector of columns [begin, end); `count` lanes are in the row.
template <class Real, class Function>
HEED_INLINE void for_each_vector(int64_t begin, int64_t end, const Function& function) {
  int64_t column = begin;
  for (; column + kLanes<Real> <= end; column += kLanes<Real>) function(column, kLanes<Real>);
  if (column < end) function(column, static_cast<int>(end - column));
}

// Sets the lanes from `count` on to `rest`.
template <class Real>
HEED_INLINE Vector<Real> fill_rest(Vector<Real> x, int count, Real rest) {
  if (count == kLanes<Real>) return x;
  Real numbers[kLanes<Real>];
  store(numbers, x);
  for (int lane = count; lane < kLanes<Real>; ++lane) numbers[lane] = rest;
  return load(numbers);
}

// The sum of the vectors function(column, count) of a row, lane by lane. Long rows are summed in blocks, and then the
// blocks: more accurate, and as fast.
template <class Real, class Function>
HEED_INLINE Vector<Real> sum_vectors(int64_t width, const Function& function) {
  constexpr int64_t kBlock = 4096;
  Vector<Real> total{};
  for (int64_t begin = 0; begin < width; begin += kBlock) {
    Vector<Real> sum{};
    for_each_vector<Real>(begin, begin + kBlock < width ? begin + kBlock : width, [&](int64_t column, int count) {
      sum += fill_rest<Real>(function(column, count), count, 0);
    });
    total += sum;
  }
  return total;
}

}  // namespace HEED_ISA
}  // namespace heed
