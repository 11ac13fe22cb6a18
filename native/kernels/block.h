// One block of scores, transposed: keys down (at most kKeyBlock), queries across (at most kQueryTile).
#pragma once

#include "../simd/vector.h"
#include "arena.h"
#include "convert.h"
#include "product.h"
#include "registry.h"

namespace heed {
namespace HEED_ISA {

// Consecutive positions.
struct Span {
  int64_t begin;
  int length;
};

HEED_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
HEED_INLINE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
HEED_INLINE int round_up(int64_t n, int multiple) { return static_cast<int>((n + multiple - 1) / multiple * multiple); }

// A number as a type, for what is compiled for it.
template <auto kValue>
struct Constant {
  static constexpr auto value = kValue;
};

// function(first, how many as a Constant): kMost at a time, then those that are left over one by one.
template <int kMost, class Function>
HEED_INLINE void in_chunks(int count, const Function& function) {
  int at = 0;
  for (; at + kMost <= count; at += kMost) function(at, Constant<kMost>{});
  for (; at < count; ++at) function(at, Constant<1>{});
}

// The queries of one tile.
HEED_INLINE Span query_tile(const HeedAttention& a, int64_t tile) {
  return {tile * kQueryTile, static_cast<int>(least(kQueryTile, a.query_length - tile * kQueryTile))};
}

// The keys of one block that lie within [lo, hi).
HEED_INLINE Span block_keys(int64_t block, int64_t lo, int64_t hi) {
  const int64_t begin = most(block * kKeyBlock, lo), end = least((block + 1) * kKeyBlock, hi);
  return {begin, static_cast<int>(end - begin)};
}

// The same, wider: from and to whole units of that many keys, as far as there are keys.
HEED_INLINE Span block_keys(const HeedAttention& a, int64_t block, int64_t lo, int64_t hi, int unit) {
  return block_keys(block, lo / unit * unit, least((hi + unit - 1) / unit * unit, a.key_length));
}

template <class Stored>
HEED_INLINE Stored* row(const HeedTensor& rows, int64_t b, int64_t position, int64_t head) {
  return static_cast<Stored*>(rows.data) + b * rows.batch_stride + position * rows.row_stride + head * rows.head_stride;
}

// Asks for rows that are needed later: to read, or (kWrite) to write whole.
template <class Stored, bool kWrite>
inline void fetch_ahead(const HeedTensor& rows, int64_t b, int64_t head, Span span, int width) {
  const int bytes = width * static_cast<int>(sizeof(Stored));
  for (int x = 0; x < span.length; ++x) {
    const char* at = reinterpret_cast<const char*>(row<Stored>(rows, b, span.begin + x, head));
    for (int c = 0; c < bytes; c += 64) __builtin_prefetch(at + c, kWrite, 2);
  }
}

// across[c][x] = factor * source[x][c]: the transposition. Columns from `span.length` to the next full vector are 0.
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

// target[x][c] = factors[x] * across[c][x], and 0 where the factor is 0, whatever the across holds there.
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

// target[x][c] = factors[x] * rows[x][c], and 0 where the factor is 0; rows `stride` apart, a multiple of the lanes.
template <class Stored, class Real>
inline void store_rows(const Real* rows, int stride, const Real* factors, const HeedTensor& target, int64_t b,
                       int64_t head, Span span, int width) {
  for (int x = 0; x < span.length; ++x) {
    Stored* to = row<Stored>(target, b, span.begin + x, head);
    for (int c = 0; c < width; c += kLanes<Real>)
      store_some(to + c, width - c, factors[x] == 0 ? Vector<Real>{} : load(rows + x * stride + c) * factors[x]);
  }
}

// rows[x][c] = factor * source[x][c], rows `stride` apart, a multiple of the lanes, padded with 0 to that width.
template <class Stored, class Real>
inline void load_rows(const HeedTensor& source, int64_t b, int64_t head, Span span, int width, Real factor, Real* rows,
                      int stride) {
  for (int x = 0; x < span.length; ++x) {
    const Stored* from = row<Stored>(source, b, span.begin + x, head);
    for (int c = 0; c < width; c += kLanes<Real>) store(rows + x * stride + c, load_some(from + c, width - c) * factor);
  }
}

// Keys or values of a block: where they lie if that can be used as it is, else a copy in the compute type. A copy
// holds 0 for whatever is not a finite number if `has_nonfinite` says that there is such.
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

// The matrix whose rows are the other axis: A(r, k) becomes A(k, r).
template <class Real>
HEED_INLINE Strided<Real> flipped(Strided<Real> a) {
  return {a.data, a.step, a.row};
}

// Whether all numbers of one row are finite.
template <class Stored>
inline bool row_is_finite(const HeedTensor& source, int64_t b, int64_t position, int64_t head, int64_t width) {
  typedef typename Compute<Stored>::Type Real;
  const Stored* from = row<Stored>(source, b, position, head);
  // A sum of differences is 0 only if none of them is NaN.
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
