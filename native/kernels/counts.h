// Counts as types, for code whose loops the compiler unrolls.
#pragma once

#include "../simd/vector.h"

namespace heed {
namespace HEED_ISA {

// A number as a type, for code that is compiled for it.
template <auto kValue>
struct Constant {
  static constexpr auto value = kValue;
};

// Calls function(first, count as a Constant): kMost at a time, then the rest one by one.
template <int kMost, class Function>
HEED_INLINE void in_chunks(int count, const Function& function) {
  int at = 0;
  for (; at + kMost <= count; at += kMost) function(at, Constant<kMost>{});
  for (; at < count; ++at) function(at, Constant<1>{});
}

// Calls function(count as a Constant) for a count up to kMost; does nothing for 0.
template <int kMost, class Function>
HEED_INLINE void with_count(int count, const Function& function) {
  if constexpr (kMost > 0) {
    if (count == kMost) return function(Constant<kMost>{});
    with_count<kMost - 1>(count, function);
  }
}

// Calls function(first, count as a Constant) for tiles of rows, kMost at a time. What is left of less than two tiles is
// halved: the sums of a small tile do not keep the multipliers busy.
template <int kMost, class Function>
HEED_INLINE void in_even_tiles(int rows, const Function& function) {
  for (int first = 0, count = 0; first < rows; first += count) {
    const int rest = rows - first;
    count = rest <= kMost ? rest : rest < 2 * kMost ? (rest + 1) / 2 : kMost;
    with_count<kMost>(count, [&](auto constant) { function(first, constant); });
  }
}

}  // namespace HEED_ISA
}  // namespace heed
