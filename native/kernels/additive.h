// The micro-kernels of additive attention: scores sum_u v_u * tanh(q_iu + k_ju) of a block, and their gradients.
//
// No array of pairs * U numbers is stored: each tanh is used at once. Units are across the lanes, so queries and keys
// are read as rows, and a single query costs no more than its share. With exponentials computed once for each row,
//   tanh(q + k) = 1 - 1 / d   where   d = 1/2 + 1/2 e^2q * e^2k
// takes one multiply-add and half a reciprocal, as two keys share one: 1 / d1 = d2 / (d1 * d2). Its error is the
// rounding of 1, too much where tanh itself is small. There, with tanh computed once for each row,
//   tanh(q + k) = (tanh q + tanh k) / (1 + tanh q * tanh k).
#pragma once

#include "block.h"

namespace heed {
namespace HEED_ISA {

// How the tanh of a block is computed.
//   kSmall  from tanh q and tanh k, if neither is near 1, where they lose digits of q and k
//   kUsual  from 1/2 e^2q and e^2k, if no product of them overflows
//   kAny    from q and k themselves, even infinite ones; several times slower
enum class Range { kSmall, kUsual, kAny };

// Bounds of |q| and |k|. The product of four exponentials, at most 2^120 (2^1000), must be finite.
inline constexpr float kMostSmall = 1;
template <class Real>
inline constexpr Real kMostUsual = sizeof(Real) == 4 ? Real(10.39) : Real(86.6);

// For the largest magnitudes of queries and keys. (NaN comes out as NaN either way.)
template <class Real>
HEED_INLINE Range range_of(Real query, Real key) {
  if (query <= Real(kMostSmall) && key <= Real(kMostSmall)) return Range::kSmall;
  return query <= kMostUsual<Real> && key <= kMostUsual<Real> ? Range::kUsual : Range::kAny;
}

// The stride of rows of units: an odd number of cache lines, so that a column of vectors spreads over the whole cache.
template <class Real>
HEED_INLINE int units_stride(int64_t units) {
  constexpr int kLine = 64 / sizeof(Real);
  return (round_up(units, kLine) / kLine | 1) * kLine;
}

// rows[x][u] = source[x][u] + bias[u] in the compute type, 0 beyond the units and the span. If `nonfinite` is not null,
// a non-finite row becomes 0 and is marked there. Returns the largest magnitude, NaN excepted. `bias` is as long as a
// row.
template <class Stored, class Real>
inline Real load_units(const HeedTensor& source, int64_t b, Span span, int rows, int units, const Real* bias, Real* to,
                       bool* nonfinite) {
  typedef Vector<Real> V;
  typedef Integers<Real> I;
  const int stride = units_stride<Real>(units);
  Real largest = 0;
  for (int x = 0; x < rows; ++x, to += stride) {
    const Stored* from = x < span.length ? row<Stored>(source, b, span.begin + x, 0) : nullptr;
    I magnitudes{};  // floats compare like integers of the same bits; NaN and infinity are the largest
    for (int u = 0; u < stride; u += kLanes<Real>) {
      V number = from && u < units ? load_some(from + u, units - u) : V{};
      if (bias) number += load(bias + u);
      store(to + u, number);
      magnitudes = larger((I)number & ~(I)broadcast(-Real(0)), magnitudes);
    }
    typename Lanes<Real>::Integer bits = 0;
    for (int lane = 0; lane < kLanes<Real>; ++lane) bits = larger(magnitudes[lane], bits);
    Real most;
    __builtin_memcpy(&most, &bits, sizeof(most));
    if (nonfinite && !is_finite(most)) {
      nonfinite[x] = true;
      for (int u = 0; u < stride; u += kLanes<Real>) store(to + u, V{});
    } else {
      largest = larger(most, largest);
    }
  }
  return largest;
}

// Converts whole rows to the form that `range` needs; exponentials times `factor`. `to` may be `from`.
template <class Real>
inline void prepare(Range range, const Real* from, int rows, int units, Real factor, Real* to) {
  const int count = rows * units_stride<Real>(units);
  if (range == Range::kSmall)
    for (int n = 0; n < count; n += kLanes<Real>) store(to + n, tanh<Real>(load(from + n)));
  if (range == Range::kUsual)
    for (int n = 0; n < count; n += kLanes<Real>) store(to + n, exp_of_twice(load(from + n)) * factor);
}

// The tanh of one query with each of two keys.
template <Range range, class Real>
HEED_INLINE void tanh_of_pair(Vector<Real> query, Vector<Real> first_key, Vector<Real> second_key, Vector<Real>* first,
                              Vector<Real>* second) {
  if constexpr (range == Range::kAny) {
    *first = tanh<Real>(query + first_key);
    *second = tanh<Real>(query + second_key);
    return;
  }
  const Real shift = range == Range::kSmall ? Real(1) : Real(0.5);
  const Vector<Real> d1 = query * first_key + shift, d2 = query * second_key + shift;
  const Vector<Real> shared = reciprocal(d1 * d2);
  if constexpr (range == Range::kSmall) {
    *first = (query + first_key) * (shared * d2);
    *second = (query + second_key) * (shared * d1);
  } else {
    *first = 1 - shared * d2;
    *second = 1 - shared * d1;
  }
}

// Scores of kRows keys and kColumns queries.
template <Range range, int kRows, int kColumns, class Real>
HEED_INLINE void score_tile(const Real* query, const Real* key, int stride, const Real* vector, int units,
                            Real* scores) {
  typedef Vector<Real> V;
  static_assert(kRows * kColumns <= kLanes<Real> && kRows % 2 == 0, "sums_of_lanes takes no more rows than lanes");
  V sums[kLanes<Real>] = {};
  for (int u = 0; u < units; u += kLanes<Real>) {
    const V factor = load(vector + u);
    V q[kColumns];
#pragma GCC unroll 8
    for (int x = 0; x < kColumns; ++x) q[x] = load(query + x * stride + u);
#pragma GCC unroll 8
    for (int y = 0; y < kRows; y += 2) {
      const V k0 = load(key + y * stride + u), k1 = load(key + (y + 1) * stride + u);
#pragma GCC unroll 8
      for (int x = 0; x < kColumns; ++x) {
        V t0, t1;
        tanh_of_pair<range, Real>(q[x], k0, k1, &t0, &t1);
        sums[y * kColumns + x] += factor * t0;
        sums[(y + 1) * kColumns + x] += factor * t1;
      }
    }
  }
  Real result[kLanes<Real>];
  store(result, sums_of_lanes<Real>(sums));
#pragma GCC unroll 8
  for (int y = 0; y < kRows; ++y)
    __builtin_memcpy(scores + y * kQueryTile, result + y * kColumns, kColumns * sizeof(Real));
}

// Keys of one tile of scores.
template <class Real>
inline constexpr int kScoreRows = kLanes<Real> >= 8 ? 4 : 2;

// scores[y][x] of `queries` rows and `keys` rows in the form of `range`; keys are padded to a multiple of kScoreRows.
template <Range range, class Real>
inline void additive_scores(const Real* query, int queries, const Real* key, int keys, const Real* vector, int units,
                            Real* scores) {
  constexpr int kRows = kScoreRows<Real>, kColumns = range == Range::kAny ? 1 : kLanes<Real> / kRows;
  const int stride = units_stride<Real>(units);
  in_chunks<kColumns>(queries, [&](int x, auto columns) {
    for (int y = 0; y < keys; y += kRows)
      score_tile<range, kRows, decltype(columns)::value>(query + x * stride, key + y * stride, stride, vector, units,
                                                         scores + y * kQueryTile + x);
  });
}

// For one vector of units, with t = tanh, s[y][x] the gradients of the scores and kColumns queries, adds
//   factor * sum_y s * (1 - t^2) to query_gradient[x],  sum_x s * (1 - t^2) to key_sums[y],  sum_xy s * t to
//   *vector_sum.
template <Range range, int kColumns, class Real>
HEED_INLINE void gradient_tile(const Real* query, const Real* key, int keys, int stride, const Real* gradients,
                               Vector<Real> factor, Real* query_gradient, Real* key_sums, Vector<Real>* vector_sum) {
  typedef Vector<Real> V;
  // Even and odd keys apart: short sums are more accurate, and do not wait for each other.
  V q[kColumns], sums0[kColumns], sums1[kColumns], vector_sum0{}, vector_sum1{};
#pragma GCC unroll 8
  for (int x = 0; x < kColumns; ++x) q[x] = load(query + x * stride), sums0[x] = sums1[x] = V{};
  for (int y = 0; y < keys; y += 2) {
    const V k0 = load(key + y * stride), k1 = load(key + (y + 1) * stride);
    V key_sum0 = load(key_sums + y * kLanes<Real>), key_sum1 = load(key_sums + (y + 1) * kLanes<Real>);
#pragma GCC unroll 8
    for (int x = 0; x < kColumns; ++x) {
      V t0, t1;
      tanh_of_pair<range, Real>(q[x], k0, k1, &t0, &t1);
      const V s0 = broadcast(gradients[y * kQueryTile + x]), s1 = broadcast(gradients[(y + 1) * kQueryTile + x]);
      vector_sum0 += s0 * t0;
      vector_sum1 += s1 * t1;
      const V slope0 = 1 - t0 * t0, slope1 = 1 - t1 * t1;
      sums0[x] += s0 * slope0;
      sums1[x] += s1 * slope1;
      key_sum0 += s0 * slope0;
      key_sum1 += s1 * slope1;
    }
    store(key_sums + y * kLanes<Real>, key_sum0);
    store(key_sums + (y + 1) * kLanes<Real>, key_sum1);
  }
  *vector_sum += vector_sum0 + vector_sum1;
#pragma GCC unroll 8
  for (int x = 0; x < kColumns; ++x) {
    Real* to = query_gradient + x * stride;
    store(to, load(to) + factor * (sums0[x] + sums1[x]));
  }
}

// Adds gradients[y][x] of the scores of a block to the gradients of queries, keys (rows of units each) and score
// vector. Rows are in the form of `range`, with one more row of keys, and of gradients 0, if their number is odd.
// `column`: scratch of a vector for each key.
template <Range range, class Real>
inline void additive_gradients(const Real* query, int queries, const Real* key, int keys, const Real* vector, int units,
                               const Real* gradients, Real* query_gradient, Real* key_gradient, Real* vector_gradient,
                               Real* column) {
  typedef Vector<Real> V;
  constexpr int kColumns = range == Range::kAny ? 1 : Sizes::kTogether;
  const int stride = units_stride<Real>(units), even_keys = round_up(keys, 2);
  for (int u = 0; u < units; u += kLanes<Real>) {
    const V factor = load(vector + u);
    V vector_sum{};
    for (int y = 0; y < even_keys; ++y) store(column + y * kLanes<Real>, V{});
    // A few keys at a time: short sums are more accurate.
    for (int y = 0; y < even_keys; y += kAdditiveKeys) {
      const int some = static_cast<int>(min(kAdditiveKeys, even_keys - y));
      const Real *keys_from = key + y * stride + u, *gradients_from = gradients + y * kQueryTile;
      Real* column_from = column + y * kLanes<Real>;
      in_chunks<kColumns>(queries, [&](int x, auto columns) {
        gradient_tile<range, decltype(columns)::value>(query + x * stride + u, keys_from, some, stride,
                                                       gradients_from + x, factor, query_gradient + x * stride + u,
                                                       column_from, &vector_sum);
      });
    }
    for (int y = 0; y < keys; ++y) {
      Real* to = key_gradient + y * stride + u;
      store(to, load(to) + factor * load(column + y * kLanes<Real>));
    }
    store(vector_gradient + u, load(vector_gradient + u) + vector_sum);
  }
}

}  // namespace HEED_ISA
}  // namespace heed
