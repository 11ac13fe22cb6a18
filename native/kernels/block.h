// One block of scores, transposed: keys down (at most kKeyBlock), queries across (at most kQueryTile).
#pragma once

#include "../simd/vector.h"
#include "arena.h"
#include "convert.h"
#include "product.h"
#include "registry.h"

namespace heed {
namespace HEED_ISA {

// Those of float32.
inline constexpr HeedBlockSizes kBlockSizes = {kQueryTile, kKeyBlock, Sizes::kRows, Sizes::kVectors * kLanes<float>,
                                               kMostDepth};

// Consecutive positions.
struct Span {
  int64_t begin;
  int length;
};

HEED_INLINE int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
HEED_INLINE int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }
HEED_INLINE int round_up(int64_t n, int multiple) { return static_cast<int>((n + multiple - 1) / multiple * multiple); }

// The queries of one tile.
HEED_INLINE Span query_tile(const HeedAttention& a, int64_t tile) {
  return {tile * kQueryTile, static_cast<int>(min(kQueryTile, a.query_length - tile * kQueryTile))};
}

// The keys of a block within [lo, hi).
HEED_INLINE Span block_keys(int64_t block, int64_t lo, int64_t hi) {
  const int64_t begin = max(block * kKeyBlock, lo), end = min((block + 1) * kKeyBlock, hi);
  return {begin, static_cast<int>(end - begin)};
}

// The same, extended to whole units of `unit` keys, up to the last key.
HEED_INLINE Span block_keys(const HeedAttention& a, int64_t block, int64_t lo, int64_t hi, int unit) {
  return block_keys(block, lo / unit * unit, min((hi + unit - 1) / unit * unit, a.key_length));
}

template <class Stored>
HEED_INLINE Stored* row(const HeedTensor& rows, int64_t b, int64_t position, int64_t head) {
  return static_cast<Stored*>(rows.data) + b * rows.batch_stride + position * rows.row_stride + head * rows.head_stride;
}

// Prefetches rows to read or (kWrite) to write.
template <class Stored, bool kWrite>
inline void fetch_ahead(const HeedTensor& rows, int64_t b, int64_t head, Span span, int width) {
  const int bytes = width * static_cast<int>(sizeof(Stored));
  for (int x = 0; x < span.length; ++x) {
    const char* at = reinterpret_cast<const char*>(row<Stored>(rows, b, span.begin + x, head));
    for (int c = 0; c < bytes; c += 64) __builtin_prefetch(at + c, kWrite, 2);
  }
}

// across[c][x] = factor * source[x][c]. Columns from `span.length` to the next full vector are 0.
template <class Stored, class Real>
inline void load_transposed(const HeedTensor& source, int64_t b, int64_t head, Span span, int width, Real factor,
                            Real* across) {
  for (int x = 0; x < span.length; x += kLanes<Real>)
    for (int c = 0; c < width; c += kLanes<Real>) {
      const int count = width - c;
      Vector<Real> square[kLanes<Real>];
#pragma GCC unroll 16
      for (int r = 0; r < kLanes<Real>; ++r)
        square[r] = x + r < span.length
                        ? load_some(row<Stored>(source, b, span.begin + x + r, head) + c, count) * factor
                        : Vector<Real>{};
      transpose<Real>(square);
      for (int r = 0; r < kLanes<Real> && r < count; ++r) store(across + (c + r) * kQueryTile + x, square[r]);
    }
}

// target[x][c] = factors[x] * across[c][x]; 0 where the factor is 0, even for NaN.
template <class Stored, class Real>
inline void store_transposed(const Real* across, const Real* factors, const HeedTensor& target, int64_t b, int64_t head,
                             Span span, int width) {
  typedef Vector<Real> V;
  for (int x = 0; x < span.length; x += kLanes<Real>) {
    const V factor = load(factors + x);
    for (int c = 0; c < width; c += kLanes<Real>) {
      const int count = width - c;
      V square[kLanes<Real>];
#pragma GCC unroll 16
      for (int r = 0; r < kLanes<Real>; ++r) {
        const V from = r < count ? load(across + (c + r) * kQueryTile + x) : V{};
        square[r] = factor == 0 ? V{} : from * factor;
      }
      transpose<Real>(square);
      for (int r = 0; r < kLanes<Real> && x + r < span.length; ++r)
        store_some(row<Stored>(target, b, span.begin + x + r, head) + c, count, square[r]);
    }
  }
}

// target[x][c] = factors[x] * rows[x][c]; 0 where the factor is 0. Rows are `stride` apart, a multiple of the lanes.
template <class Stored, class Real>
inline void store_rows(const Real* rows, int stride, const Real* factors, const HeedTensor& target, int64_t b,
                       int64_t head, Span span, int width) {
  for (int x = 0; x < span.length; ++x) {
    Stored* to = row<Stored>(target, b, span.begin + x, head);
    for (int c = 0; c < width; c += kLanes<Real>)
      store_some(to + c, width - c, factors[x] == 0 ? Vector<Real>{} : load(rows + x * stride + c) * factors[x]);
  }
}

// rows[x][c] = factor * source[x][c]. Rows are `stride` apart, a multiple of the lanes, and padded with 0.
template <class Stored, class Real>
inline void load_rows(const HeedTensor& source, int64_t b, int64_t head, Span span, int width, Real factor, Real* rows,
                      int stride) {
  for (int x = 0; x < span.length; ++x) {
    const Stored* from = row<Stored>(source, b, span.begin + x, head);
    for (int c = 0; c < width; c += kLanes<Real>) store(rows + x * stride + c, load_some(from + c, width - c) * factor);
  }
}

// Keys or values of a block: in place if possible, else a copy in the compute type, with 0 for non-finite numbers if
// `has_nonfinite`.
template <class Stored, class Real>
inline Strided<Real> key_block(const HeedTensor& source, int64_t b, int64_t head, Span keys, int width,
                               bool has_nonfinite, Real* copy) {
  if constexpr (sizeof(Stored) == sizeof(Real))
    if (!has_nonfinite) return {row<Real>(source, b, keys.begin, head), source.row_stride, 1};
  const int stride = round_up(width, kLanes<Real>);
  for (int j = 0; j < keys.length; ++j) {
    const Stored* from = row<Stored>(source, b, keys.begin + j, head);
    for (int c = 0; c < width; c += kLanes<Real>) {
      const Vector<Real> x = load_some(from + c, width - c);
      store(copy + j * stride + c, !has_nonfinite ? x : x - x == 0 ? x : Vector<Real>{});
    }
  }
  return {copy, stride, 1};
}

// The transposed matrix, a view: A(r, k) becomes A(k, r).
template <class Real>
HEED_INLINE Strided<Real> swap_axes(Strided<Real> a) {
  return {a.data, a.step, a.row};
}

// Whether all numbers of one row are finite.
template <class Stored>
inline bool row_is_finite(const HeedTensor& source, int64_t b, int64_t position, int64_t head, int64_t width) {
  typedef typename Compute<Stored>::Type Real;
  const Stored* from = row<Stored>(source, b, position, head);
  // x - x is NaN unless x is finite.
  Vector<Real> sum{};
  for (int64_t c = 0; c < width; c += kLanes<Real>) {
    const Vector<Real> x = load_some(from + c, static_cast<int>(width - c));
    sum += x - x;
  }
  return !any(sum != 0);
}

template <class Stored, class Real = typename Compute<Stored>::Type>
inline Real row_dot(const Stored* a, const Stored* b, int width) {
  Vector<Real> total{};
  for (int c = 0; c < width; c += kLanes<Real>) total += load_some(a + c, width - c) * load_some(b + c, width - c);
  return sum_of_lanes<Real>(total);
}

}  // namespace HEED_ISA
}  // namespace heed
