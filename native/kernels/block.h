// One block of scores, transposed: keys down (at most kKeys), queries across (at most kQueries).
#pragma once

#include "../attention.h"
#include "convert.h"
#include "product.h"

namespace heed {
namespace HEED_ISA {

inline constexpr int kQueries = 64;
inline constexpr int kKeys = 96;

// Consecutive positions.
struct Span {
  int64_t begin;
  int length;
};

HEED_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
HEED_INLINE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
HEED_INLINE int round_up(int64_t n, int multiple) { return static_cast<int>((n + multiple - 1) / multiple * multiple); }

template <class Stored>
HEED_INLINE Stored* row(const Rows& rows, int64_t b, int64_t position, int64_t head) {
  return static_cast<Stored*>(rows.data) + b * rows.batch + position * rows.position + head * rows.head;
}

// panel[c][x] = factor * source[x][c]: positions across. Columns from `span.length` on are 0.
template <class Stored, class Real>
inline void load_transposed(const Rows& source, int64_t b, int64_t head, Span span, int width, Real factor,
                            Real* panel) {
  for (int x = 0; x < kQueries; ++x) {
    if (x >= span.length) {
      for (int c = 0; c < width; ++c) panel[c * kQueries + x] = 0;
      continue;
    }
    const Stored* from = row<Stored>(source, b, span.begin + x, head);
    for (int c = 0; c < width; ++c) panel[c * kQueries + x] = factor * widen(from[c]);
  }
}

// rows[x][c] = factor * source[x][c], rows `stride` apart, padded with 0 to that width and to kQueries rows.
template <class Stored, class Real>
inline void load_rows(const Rows& source, int64_t b, int64_t head, Span span, int width, Real factor, Real* rows,
                      int stride) {
  for (int x = 0; x < kQueries; ++x) {
    Real* to = rows + x * stride;
    int c = 0;
    if (x < span.length) {
      const Stored* from = row<Stored>(source, b, span.begin + x, head);
      for (; c < width; ++c) to[c] = factor * widen(from[c]);
    }
    for (; c < stride; ++c) to[c] = 0;
  }
}

// Keys or values of a block: where they lie if that can be used as it is, else a copy in the compute type. A copy for
// `finite` holds 0 for whatever is not a finite number.
template <class Stored, class Real>
inline Strided<Real> key_block(const Rows& source, int64_t b, int64_t head, Span keys, int width, bool finite,
                               Real* copy) {
  if constexpr (sizeof(Stored) == sizeof(Real))
    if (!finite) return {row<Real>(source, b, keys.begin, head), source.position, 1};
  for (int j = 0; j < keys.length; ++j) {
    const Stored* from = row<Stored>(source, b, keys.begin + j, head);
    for (int c = 0; c < width; ++c) {
      const Real x = widen(from[c]);
      copy[j * width + c] = !finite || is_finite(x) ? x : Real(0);
    }
  }
  return {copy, width, 1};
}

// The panel whose rows are the other axis: A(r, k) becomes A(k, r).
template <class Real>
HEED_INLINE Strided<Real> flipped(Strided<Real> a) {
  return {a.data, a.step, a.row};
}

// Whether all numbers of one row are finite.
template <class Stored>
inline bool row_is_finite(const Rows& source, int64_t b, int64_t position, int64_t head, int64_t width) {
  const Stored* from = row<Stored>(source, b, position, head);
  // A sum of differences is 0 only if none of them is NaN.
  auto sum = widen(from[0]) - widen(from[0]);
  for (int64_t c = 1; c < width; ++c) sum += widen(from[c]) - widen(from[c]);
  return sum == 0;
}

}  // namespace HEED_ISA
}  // namespace heed
