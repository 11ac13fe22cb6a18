// The product of a few rows with weights. Memory is the limit, so weights are read once, in place and in order. A task
// computes some columns in the compute type. Each sum has the order of k, whatever other rows and columns are computed.
#pragma once

#include "arena.h"
#include "block.h"
#include "rows.h"

namespace heed {
namespace HEED_ISA {

template <class Stored>
struct FewRowsScratch {
  typedef typename Compute<Stored>::Type Real;
  Real *sums, *copy;  // (R, kProductColumns); the rows in the compute type, if theirs is another

  FewRowsScratch(const HeedProduct& p, Arena& arena)
      : sums(arena.take<Real>(p.rows.count * kProductColumns)),
        copy(arena.take<Real>(sizeof(Stored) == sizeof(Real) ? 0 : p.rows.count * p.rows.width)) {}

  const Real* rows(const HeedProduct& p) const {
    if constexpr (sizeof(Stored) == sizeof(Real)) return static_cast<const Real*>(p.x);
    const Stored* x = static_cast<const Stored*>(p.x);
    for_each_vector<Real>(0, p.rows.count * p.rows.width,
                          [&](int64_t at, int count) { store_some(copy + at, count, load_some(x + at, count)); });
    return copy;
  }
};

// The weights of a task: rows, `stride` apart.
template <class Stored>
struct Weights {
  const Stored* data;
  int64_t stride;
};

// sums[r][c] += x[r][k] w[k][c] for kRows rows, two vectors of columns and all k of a block. It prefetches the next
// block: its rows lie apart, and no hardware follows so many streams.
template <class Stored, class Real, int kRows, bool kWhole>
HEED_INLINE void add_products(const Real* x, int64_t width, Weights<Stored> w, int depth, int ahead, int columns,
                              Real* sums) {
  typedef Vector<Real> V;
  V sum[kRows][2];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < 2; ++v) sum[r][v] = load(sums + r * kProductColumns + v * kLanes<Real>);
  for (int k = 0; k < depth; ++k, w.data += w.stride) {
    V weight[2];
    for (int v = 0; v < 2; ++v) {
      const Stored* at = w.data + v * kLanes<Real>;
      if (k < ahead && v * kLanes<Real> < columns) __builtin_prefetch(at + depth * w.stride, 0, 3);
      weight[v] = kWhole ? load_wide(at) : load_some(at, columns - v * kLanes<Real>);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < 2; ++v) sum[r][v] += x[r * width + k] * weight[v];
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < 2; ++v) store(sums + r * kProductColumns + v * kLanes<Real>, sum[r][v]);
}

// The product with weights (K, N): blocks of k, and all columns in each.
template <class Stored, class Real>
void sum_across(const Real* x, int64_t rows, int64_t width, Weights<Stored> w, int columns, Real* sums) {
  constexpr int kMost = Sizes::kFewRows, kColumns = 2 * kLanes<Real>;
  for (int64_t k = 0; k < width; k += kProductDepth) {
    const int depth = static_cast<int>(min(kProductDepth, width - k));
    const int next = static_cast<int>(min(depth, width - k - depth));
    for (int c = 0; c < columns; c += kColumns) {
      const Weights<Stored> block{w.data + k * w.stride + c, w.stride};
      const auto add = [&](int64_t r, auto some) {
        constexpr int kRows = decltype(some)::value;
        const int ahead = r == 0 ? next : 0;
        Real* to = sums + r * kProductColumns + c;
        if (c + kColumns <= columns)
          add_products<Stored, Real, kRows, true>(x + r * width + k, width, block, depth, ahead, columns - c, to);
        else
          add_products<Stored, Real, kRows, false>(x + r * width + k, width, block, depth, ahead, columns - c, to);
      };
      int64_t r = 0;
      for (; r + kMost <= rows; r += kMost) add(r, Constant<kMost>{});
      if (kMost > 4 && r + 4 <= rows) add(r, Constant<4>{}), r += 4;
      if (r + 2 <= rows) add(r, Constant<2>{}), r += 2;
      if (r < rows) add(r, Constant<1>{});
    }
  }
}

// The product with weights (N, K): multiplies rows of both lane by lane, as many pairs together as a vector has lanes,
// and then sums the lanes.
template <class Stored, class Real>
void sum_along(const Real* x, int64_t rows, int64_t width, Weights<Stored> w, int columns, Real* sums) {
  typedef Vector<Real> V;
  constexpr int kRows = kLanes<Real> < 8 ? kLanes<Real> : 8, kColumns = kLanes<Real> / kRows;
  for (int n = 0; n < columns; n += kColumns)
    for (int64_t r = 0; r < rows; r += kRows) {
      const Real* from[kRows];
      const Stored* weights[kColumns];
      for (int i = 0; i < kRows; ++i) from[i] = x + (r + i < rows ? r + i : r) * width;
      for (int j = 0; j < kColumns; ++j) weights[j] = w.data + (n + j < columns ? n + j : n) * w.stride;
      V sum[kLanes<Real>] = {};
      // One loop, the end included: a separate end would be rounded differently for some rows.
      for (int64_t k = 0; k < width; k += kLanes<Real>) {
        const int count = static_cast<int>(min(kLanes<Real>, width - k));
        V weight[kColumns];
#pragma GCC unroll 2
        for (int j = 0; j < kColumns; ++j) weight[j] = load_some(weights[j] + k, count);
#pragma GCC unroll 8
        for (int i = 0; i < kRows; ++i) {
          const V row = load_some(from[i] + k, count);
#pragma GCC unroll 2
          for (int j = 0; j < kColumns; ++j) sum[j * kRows + i] += row * weight[j];
        }
      }
      Real totals[kLanes<Real>];
      store(totals, sums_of_lanes<Real>(sum));
      for (int j = 0; j < kColumns && n + j < columns; ++j)
        for (int i = 0; i < kRows && r + i < rows; ++i) sums[(r + i) * kProductColumns + n + j] = totals[j * kRows + i];
    }
}

// Columns [begin, end) of one group, at most kProductColumns.
template <class Stored>
void few_rows(const HeedProduct& p, void* y, int64_t group, int64_t begin, int64_t end, char* memory) {
  typedef typename Compute<Stored>::Type Real;
  Arena arena(memory);
  const FewRowsScratch<Stored> s(p, arena);
  const int columns = static_cast<int>(end - begin);
  const int64_t width = p.rows.width, stride = p.transposed ? width : p.columns;
  const Stored* weights = static_cast<const Stored*>(p.weights) + group * width * p.columns;
  const Weights<Stored> w{weights + begin * (p.transposed ? width : 1), stride};
  for (int64_t i = 0; i < p.rows.count * kProductColumns; ++i) s.sums[i] = 0;
  if (p.transposed)
    sum_along<Stored, Real>(s.rows(p), p.rows.count, width, w, columns, s.sums);
  else
    sum_across<Stored, Real>(s.rows(p), p.rows.count, width, w, columns, s.sums);
  const int64_t at = group * p.columns + begin;
  const Stored* bias = p.bias ? static_cast<const Stored*>(p.bias) + at : nullptr;
  for (int64_t r = 0; r < p.rows.count; ++r) {
    Stored* to = static_cast<Stored*>(y) + r * p.groups * p.columns + at;
    for_each_vector<Real>(0, columns, [&](int64_t c, int count) {
      const auto sum = load(s.sums + r * kProductColumns + c);
      store_some(to + c, count, bias ? sum + load_some(bias + c, count) : sum);
    });
  }
}

}  // namespace HEED_ISA
}  // namespace heed
