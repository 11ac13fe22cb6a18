// The micro-kernel: C (+)= A . B for a narrow C that stays in registers.
//
// A is read one number at a time and broadcast, in rows or in columns, so keys, values and their gradients are never
// packed. B and C have rows of consecutive numbers. All five products of attention, forward and backward, have this
// form if scores are transposed (keys down, queries across).
#pragma once

#include "counts.h"
#include "tuning.h"

namespace heed {
namespace HEED_ISA {

typedef RegisterSizes<kRegisters, Simd::kByLane> Sizes;

template <class Real>
struct Strided {
  const Real* data;
  ptrdiff_t row, step;  // distance to the next row of C, and to the next term of the sum; one of them is 1
};

// C (+)= sums, which begin at zero: adding a product once is more accurate than adding its terms to a large sum.
template <class Real, int kRows, int kVectors>
HEED_INLINE void store_sums(const Vector<Real> (&sum)[kRows][kVectors], Real* c, ptrdiff_t c_row, bool accumulate) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      Real* to = c + r * c_row + v * kLanes<Real>;
      store(to, accumulate ? load(to) + sum[r][v] : sum[r][v]);
    }
}

// kColumns: whether A is read in columns (a.row is 1), else in rows (a.step is 1).
template <class Real, int kRows, int kVectors, bool kColumns>
HEED_INLINE void product_tile(Strided<Real> a, const Real* b, ptrdiff_t b_row, Real* c, ptrdiff_t c_row, int depth,
                              bool accumulate) {
  typedef Vector<Real> V;
  V sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sum[r][v] = V{};
  constexpr int kLine = 64 / static_cast<int>(sizeof(Real));
  const ptrdiff_t row = kColumns ? 1 : a.row, step = kColumns ? a.step : 1;
  for (int begin = 0; begin < depth; begin += kLine) {
    const int end = depth - begin < kLine ? depth - begin : kLine;
    // The processor does not predict the order of A's cache lines. With 16 registers, lines are read once for each
    // narrow strip of C; a power of two apart, they evict each other from the first-level cache, prefetched ones above
    // all. Then rows are prefetched into the second level, and columns, which are there already, are not.
    constexpr int kLevel = kRegisters >= 32 ? 3 : 2;  // 3: the first
#pragma GCC unroll 8
    for (int r = 0; !kColumns && r < kRows; ++r) __builtin_prefetch(a.data + (kRows + r) * row, 0, kLevel);
#pragma GCC unroll 4
    for (int k = 0; k < end; ++k) {
      if (kColumns && kRegisters >= 32) __builtin_prefetch(a.data + 8 * step);
      V x[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) x[v] = load(b + v * kLanes<Real>);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const V s = broadcast(a.data[r * row]);
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) sum[r][v] += s * x[v];
      }
      a.data += step;
      b += b_row;
    }
  }
  store_sums<Real>(sum, c, c_row, accumulate);
}

// Calls function(index as a Constant) for each index below kCount: lanes must be constants before loops are unrolled.
template <int kCount, int kIndex = 0, class Function>
HEED_INLINE void for_each_index(const Function& function) {
  if constexpr (kIndex < kCount) {
    function(Constant<kIndex>{});
    for_each_index<kCount, kIndex + 1>(function);
  }
}

// Where the factors of a row of C are: `kInVector` rows in each vector of A, from lane kFrom on.
template <int kRowsInVector, int kFrom>
struct RowsOf {
  static constexpr int kInVector = kRowsInVector, kFirst = kFrom;
};

// The same for instructions that multiply by one lane of a register (`Simd::add_product`): whole vectors of A are
// loaded and never broadcast. If it is read in columns, there are whole vectors of rows.
template <class Real, int kRows, int kVectors, bool kColumns>
HEED_INLINE void lane_tile(Strided<Real> a, const Real* b, ptrdiff_t b_row, Real* c, ptrdiff_t c_row, int depth,
                           bool accumulate) {
  typedef Vector<Real> V;
  constexpr int kSteps = kColumns ? 2 : kLanes<Real>;  // of the sum at a time
  constexpr int kLoads = kColumns ? kRows / kLanes<Real> : kRows, kLine = 64 / static_cast<int>(sizeof(Real));
  static_assert(!kColumns || kRows % kLanes<Real> == 0, "rows of A come in whole vectors");
  V sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sum[r][v] = V{};
  const ptrdiff_t row = kColumns ? 1 : a.row, step = kColumns ? a.step : 1;
  // Every row of A times one row of B. The attribute: GCC would compile the lambdas as functions.
  const auto add_row = [&](const V* from, auto rows) __attribute__((always_inline)) {
    V x[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) x[v] = load(b + v * kLanes<Real>);
    b += b_row;
    for_each_index<kRows>([&](auto r) __attribute__((always_inline)) {
      constexpr int kVector = r.value / rows.kInVector, kLane = rows.kFirst + r.value % rows.kInVector;
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v)
        sum[r.value][v] = Simd::template add_product<kLane>(sum[r.value][v], x[v], from[kVector]);
    });
  };
  for (int begin = 0; begin < depth; begin += kLine) {
    int left = depth - begin < kLine ? depth - begin : kLine;
#pragma GCC unroll 8
    for (int r = 0; !kColumns && r < kRows; ++r) __builtin_prefetch(a.data + (kRows + r) * row, 0, 3);
    for (; left >= kSteps; left -= kSteps) {
      V from[kLoads];
      for_each_index<kSteps>([&](auto at) __attribute__((always_inline)) {
        if constexpr (kColumns || at.value == 0) {
          if (kColumns) __builtin_prefetch(a.data + 8 * step);
          for_each_index<kLoads>([&](auto i) __attribute__((always_inline)) {
            from[i.value] = load(a.data + i.value * (kColumns ? kLanes<Real> : row));
          });
          a.data += kColumns ? step : kSteps;
        }
        add_row(from, RowsOf<kColumns ? kLanes<Real> : 1, kColumns ? 0 : at.value>{});
      });
    }
    for (; left > 0; --left, a.data += step) {
      V from[kRows];
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) from[r] = broadcast(a.data[r * row]);
      add_row(from, RowsOf<1, 0>{});
    }
  }
  store_sums<Real>(sum, c, c_row, accumulate);
}

template <class Real, int kVectors, bool kColumns>
inline void product_rows(Strided<Real> a, int rows, const Real* b, ptrdiff_t b_row, Real* c, ptrdiff_t c_row, int depth,
                         bool accumulate) {
  constexpr int kMost = kVectors == 2 ? Sizes::kRowsOfTwo : Sizes::kRows;
  in_even_tiles<kMost>(rows, [&](int first, auto count) {
    constexpr int kRows = decltype(count)::value;
    const Strided<Real> from{a.data + first * a.row, a.row, a.step};
    if constexpr (Simd::kByLane && kRows == Sizes::kRowsOfTwo && kVectors == 2)
      lane_tile<Real, kRows, kVectors, kColumns>(from, b, b_row, c + first * c_row, c_row, depth, accumulate);
    else
      product_tile<Real, kRows, kVectors, kColumns>(from, b, b_row, c + first * c_row, c_row, depth, accumulate);
  });
}

template <class Real, bool kColumns>
inline void product_of(Strided<Real> a, int rows, const Real* b, ptrdiff_t b_row, Real* c, ptrdiff_t c_row, int columns,
                       int depth, bool accumulate) {
  constexpr int kWide = Sizes::kVectors;
  for (int k = 0; k < depth;) {
    const int chunk = depth - k <= kMostDepth ? depth - k : kDepth;
    int x = 0;
    // A sum waits for its last term, so a row or two need more vectors to keep the multipliers busy.
    const auto thin = [&](auto some, auto vectors) {
      constexpr int kRows = decltype(some)::value, kVectors = decltype(vectors)::value;
      for (; x + kVectors * kLanes<Real> <= columns; x += kVectors * kLanes<Real>)
        product_tile<Real, kRows, kVectors, kColumns>(a, b + x, b_row, c + x, c_row, chunk, accumulate);
    };
    if (rows == 1) thin(Constant<1>{}, Constant<8>{}), thin(Constant<1>{}, Constant<4>{});
    if (rows == 2) thin(Constant<2>{}, Constant<4>{});
    for (; x + kWide * kLanes<Real> <= columns; x += kWide * kLanes<Real>)
      product_rows<Real, kWide, kColumns>(a, rows, b + x, b_row, c + x, c_row, chunk, accumulate);
    if constexpr (kWide == 4)
      for (; x + 2 * kLanes<Real> <= columns; x += 2 * kLanes<Real>)
        product_rows<Real, 2, kColumns>(a, rows, b + x, b_row, c + x, c_row, chunk, accumulate);
    for (; x + kLanes<Real> <= columns; x += kLanes<Real>)
      product_rows<Real, 1, kColumns>(a, rows, b + x, b_row, c + x, c_row, chunk, accumulate);
    k += chunk;
    a.data += chunk * a.step;
    b += chunk * b_row;
    accumulate = true;
  }
}

// C[r][x] (+)= sum over k of A(r, k) * B[k][x], for x < columns, a multiple of the lanes.
template <class Real>
inline void product(Strided<Real> a, int rows, const Real* b, ptrdiff_t b_row, Real* c, ptrdiff_t c_row, int columns,
                    int depth, bool accumulate) {
  if (a.row == 1)
    product_of<Real, true>(a, rows, b, b_row, c, c_row, columns, depth, accumulate);
  else
    product_of<Real, false>(a, rows, b, b_row, c, c_row, columns, depth, accumulate);
}

}  // namespace HEED_ISA
}  // namespace heed
