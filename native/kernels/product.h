// The micro-kernel: C (+)= A . B for a narrow C that stays in registers.
//
// A is read one number at a time and broadcast, with any strides, so keys, values and their gradients are never packed.
// B and C have rows of consecutive numbers. All five products of attention, forward and backward, have this form if
// scores are transposed (keys down, queries across).
#pragma once

#include "../simd/vector.h"

namespace heed {
namespace HEED_ISA {

template <class Real>
struct Strided {
  const Real* data;
  ptrdiff_t row, step;  // distance to the next row of C, and to the next term of the sum
};

template <class Real, int kRows, int kVectors>
HEED_INLINE void product_tile(Strided<Real> a, const Real* b, ptrdiff_t b_row, Real* c, ptrdiff_t c_row, int depth,
                              bool accumulate) {
  typedef Vector<Real> V;
  V sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sum[r][v] = V{};
  for (int k = 0; k < depth; ++k) {
    V x[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) x[v] = load(b + v * kLanes<Real>);
    // The processor does not predict the order of A's cache lines.
    if (a.row == 1)
      __builtin_prefetch(a.data + 8 * a.step);
    else if (k % (64 / static_cast<int>(sizeof(Real))) == 0)
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) __builtin_prefetch(a.data + (kRows + r) * a.row);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const V s = broadcast(a.data[r * a.row]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sum[r][v] += s * x[v];
    }
    a.data += a.step;
    b += b_row;
  }
  // Each product is summed from zero and added once: more accurate than adding to a large sum term by term.
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      Real* to = c + r * c_row + v * kLanes<Real>;
      store(to, accumulate ? load(to) + sum[r][v] : sum[r][v]);
    }
}

// The rest of the rows runs the same body as full tiles, with fewer rows.
template <class Real, int kVectors>
inline void product_rows(Strided<Real> a, int rows, const Real* b, ptrdiff_t b_row, Real* c, ptrdiff_t c_row, int depth,
                         bool accumulate) {
  constexpr int kMost = 6, kMore = 8;
  if constexpr (kRegisters >= 32 && kVectors == 2)  // enough sums to keep both multipliers busy
    for (; rows >= kMore; rows -= kMore, a.data += kMore * a.row, c += kMore * c_row)
      product_tile<Real, kMore, kVectors>(a, b, b_row, c, c_row, depth, accumulate);
  for (; rows >= kMost; rows -= kMost, a.data += kMost * a.row, c += kMost * c_row)
    product_tile<Real, kMost, kVectors>(a, b, b_row, c, c_row, depth, accumulate);
  switch (rows) {
    case 5: return product_tile<Real, 5, kVectors>(a, b, b_row, c, c_row, depth, accumulate);
    case 4: return product_tile<Real, 4, kVectors>(a, b, b_row, c, c_row, depth, accumulate);
    case 3: return product_tile<Real, 3, kVectors>(a, b, b_row, c, c_row, depth, accumulate);
    case 2: return product_tile<Real, 2, kVectors>(a, b, b_row, c, c_row, depth, accumulate);
    case 1: return product_tile<Real, 1, kVectors>(a, b, b_row, c, c_row, depth, accumulate);
    default: return;
  }
}

// C[r][x] (+)= sum over k of A(r, k) * B[k][x], for x < columns, a multiple of the lanes.
template <class Real>
inline void product(Strided<Real> a, int rows, const Real* b, ptrdiff_t b_row, Real* c, ptrdiff_t c_row, int columns,
                    int depth, bool accumulate) {
  constexpr int kWide = kRegisters >= 32 ? 4 : 2;  // 6 x 4 sums of 32 registers, or 6 x 2 of 16
  constexpr int kMostDepth = 96;  // these rows of B fit the first-level cache; and shorter sums are more accurate
  for (int k = 0; k < depth;) {
    const int chunk = depth - k <= kMostDepth ? depth - k : 64;
    int x = 0;
    for (; x + kWide * kLanes<Real> <= columns; x += kWide * kLanes<Real>)
      product_rows<Real, kWide>(a, rows, b + x, b_row, c + x, c_row, chunk, accumulate);
    if constexpr (kWide == 4)
      for (; x + 2 * kLanes<Real> <= columns; x += 2 * kLanes<Real>)
        product_rows<Real, 2>(a, rows, b + x, b_row, c + x, c_row, chunk, accumulate);
    for (; x + kLanes<Real> <= columns; x += kLanes<Real>)
      product_rows<Real, 1>(a, rows, b + x, b_row, c + x, c_row, chunk, accumulate);
    k += chunk;
    a.data += chunk * a.step;
    b += chunk * b_row;
    accumulate = true;
  }
}

}  // namespace HEED_ISA
}  // namespace heed
