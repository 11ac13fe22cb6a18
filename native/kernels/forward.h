// Forward: one panel of queries against all the keys that it may see.
//
// Memory traffic: the panel is transposed once into scratch that stays in the first-level cache; keys and values stream
// by, one block at a time. Scores of a block (128 x 64) never leave the cache.
#pragma once

#include "scores.h"

namespace heed {
namespace HEED_ISA {

// The two products of the forward pass in vectors, on keys and values that are read where they lie.
template <class Stored>
class VectorProducts {
 public:
  typedef typename Compute<Stored>::Type Real;
  static constexpr bool kPairs = false;  // whether weights are wanted as pairs of bfloat16
  static constexpr bool kWhole = false;  // whether blocks of keys are wanted whole, with what is masked
  static constexpr bool kRows = true;    // whether there is `weighted_rows`

  static size_t bytes(const Attention& a) {
    const size_t wide = static_cast<size_t>(round_up(most(a.width, a.value_width), Lanes<Real>::kCount));
    return sizeof(Real) * (kQueries * static_cast<size_t>(a.width) + kKeys * wide);
  }
  static int value_rows(const Attention& a) { return static_cast<int>(a.value_width); }

  VectorProducts(const Attention& a, int64_t b, int64_t group, const char*, char* memory)
      : a_(a), b_(b), group_(group), query_(reinterpret_cast<Real*>(memory)), copy_(query_ + kQueries * a.width) {}

  // Scores times this are scores.
  Real unit() const { return 1; }

  void load_query(int64_t n, Span queries) {
    load_transposed<Stored, Real>(a_.query, b_, n, queries, width(), static_cast<Real>(a_.scale), query_);
  }
  void scores(Span keys, bool guarded, int columns, Real* scores) {
    const auto key = key_block<Stored, Real>(a_.key, b_, group_, keys, width(), guarded, copy_);
    product(key, keys.length, query_, kQueries, scores, kQueries, columns, width(), false);
  }
  void add_values(Span keys, bool guarded, int columns, Real* weights, Real* output) {
    const int value_width = static_cast<int>(a_.value_width);
    const auto value = key_block<Stored, Real>(a_.value, b_, group_, keys, value_width, guarded, copy_);
    product(flipped(value), value_width, weights, kQueries, output, kQueries, columns, keys.length, true);
  }
  // The width of rows of the output that `weighted_rows` computes; 0 if it cannot, for it reads values in whole
  // vectors.
  static int row_width(const Attention& a) {
    const int wide = round_up(a.value_width, Lanes<Real>::kCount);
    return sizeof(Stored) != sizeof(Real) || wide == a.value_width ? wide : 0;
  }
  // The same sums as `add_values`, from zero, one row a query.
  void weighted_rows(Span keys, bool guarded, int queries, Real* weights, Real* output) {
    const auto value =
        key_block<Stored, Real>(a_.value, b_, group_, keys, static_cast<int>(a_.value_width), guarded, copy_);
    const int wide = row_width(a_);
    product(Strided<Real>{weights, 1, kQueries}, queries, value.data, value.row, output, wide, wide, keys.length,
            false);
  }

 private:
  int width() const { return static_cast<int>(a_.width); }

  const Attention& a_;
  int64_t b_, group_;
  Real *query_, *copy_;
};

template <class Products>
struct ForwardScratch {
  typedef typename Products::Real Real;
  Real* output;  // panels of kQueries, one a feature of the values; or rows of features, one a query
  Real* scores;  // kKeys panels
  typename Lanes<Real>::Integer* hidden;
  char* products;

  static size_t bytes(const Attention& a) {
    return sizeof(Real) * kQueries * (static_cast<size_t>(output_rows(a)) + 2 * kKeys) + Products::bytes(a);
  }
  static int output_rows(const Attention& a) { return round_up(Products::value_rows(a), Lanes<Real>::kCount); }
  static ForwardScratch in(char* memory, const Attention& a) {
    ForwardScratch s;
    s.output = reinterpret_cast<Real*>(memory);
    s.scores = s.output + kQueries * output_rows(a);
    s.hidden = reinterpret_cast<typename Lanes<Real>::Integer*>(s.scores + kQueries * kKeys);
    s.products = reinterpret_cast<char*>(s.hidden + kQueries * kKeys);
    return s;
  }
};

// Where a mask hides something, products run over finite stand-ins, and a query that sees a key or value which is not
// finite is marked: 0 * NaN must not reach the others.
template <class Stored>
inline bool block_is_finite(const Attention& a, int64_t b, int64_t group, Span keys) {
  for (int y = 0; y < keys.length; ++y)
    if (!row_is_finite<Stored>(a.key, b, keys.begin + y, group, a.width) ||
        !row_is_finite<Stored>(a.value, b, keys.begin + y, group, a.value_width))
      return false;
  return true;
}

template <class Stored>
inline void mark_broken(const Attention& a, int64_t b, int64_t n, int64_t group, Span queries, Span keys,
                        bool* broken) {
  for (int y = 0; y < keys.length; ++y) {
    const int64_t j = keys.begin + y;
    if (row_is_finite<Stored>(a.key, b, j, group, a.width) &&
        row_is_finite<Stored>(a.value, b, j, group, a.value_width))
      continue;
    for (int x = 0; x < queries.length; ++x) broken[x] |= visible(a, b, n, queries.begin + x, j);
  }
}

// The running softmax of some columns: the highest score that weights are relative to, and the sum of weights.
template <class Real>
struct Running {
  Real highest[kQueries], sum[kQueries];
};

HEED_INLINE Vector<double> paired(Vector<double> first, Vector<double>) { return first; }
// Two vectors of weights as one of pairs of bfloat16.
HEED_INLINE Vector<float> paired(Vector<float> first, Vector<float> second) {
  return (Vector<float>)(((Words)first + 0x8000u) >> 16 | (((Words)second + 0x8000u) & 0xffff0000u));
}

// Turns the scores of `kVectors` vectors of columns, from column x on, into weights; with kPairs rows y and y + 1
// become pairs in row y. `unit` times what is given are scores.
template <class Real, int kVectors, bool kPairs>
inline void weigh(Running<Real>& running, int x, Real* scores, int rows, Real unit, Real* output, int value_rows) {
  typedef Vector<Real> V;
  constexpr int kCount = Lanes<Real>::kCount;
  const Real log2e = unit * static_cast<Real>(1.4426950408889634074);
  // Weights may exceed 1 by this factor (of e) before they are made relative to a higher score: most blocks then need
  // no second pass over the output, and nothing is lost, as their sum divides them in the end.
  const Real slack = 5 / unit;
  const V lowest = broadcast(-static_cast<Real>(__builtin_inf()));
  Real *highest = running.highest + x, *sum = running.sum + x;

  // Odd and even rows apart: half as long a chain of operations that wait for each other.
  V odd[kVectors], even[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) odd[v] = even[v] = lowest;
  for (int y = 0; y < rows; y += 2) {
    const Real *first = scores + y * kQueries + x, *second = y + 1 < rows ? first + kQueries : first;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      even[v] = larger(load<V>(first + v * kCount), even[v]);
      odd[v] = larger(load<V>(second + v * kCount), odd[v]);
    }
  }
  V base[kVectors];
  Integers<Real> grown{};
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    odd[v] = larger(odd[v], even[v]);
    base[v] = load<V>(highest + v * kCount);
    grown |= odd[v] > base[v] + slack;
  }
  if (any(grown))
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const V higher = larger(odd[v], base[v]);
      // A column that has seen nothing yet has highest -inf; with any finite stand-in its weights are exp(-inf) = 0.
      const V shrink = exp2((base[v] - (higher > lowest ? higher : V{})) * log2e);
      base[v] = higher;
      store(highest + v * kCount, higher);
      store(sum + v * kCount, load<V>(sum + v * kCount) * shrink);
      for (int c = 0; c < value_rows; ++c) {
        Real* at = output + c * kQueries + x + v * kCount;
        store(at, load<V>(at) * shrink);
      }
    }
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    base[v] = base[v] > lowest ? base[v] : V{};
    odd[v] = even[v] = V{};
  }
  // The difference first: the rounding of a large score times log2e would be as large as the weight's exponent. Two
  // short sums are also more accurate than one long one.
  int y = 0;
  for (; y + 1 < rows; y += 2)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      Real* at = scores + y * kQueries + x + v * kCount;
      const V first = exp2((load<V>(at) - base[v]) * log2e);
      const V second = exp2((load<V>(at + kQueries) - base[v]) * log2e);
      store(at, kPairs ? paired(first, second) : first);
      if (!kPairs) store(at + kQueries, second);
      even[v] += first;
      odd[v] += second;
    }
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    if (y < rows) {
      Real* at = scores + y * kQueries + x + v * kCount;
      const V last = exp2((load<V>(at) - base[v]) * log2e);
      store(at, kPairs ? paired(last, V{}) : last);
      even[v] += last;
    }
    store(sum + v * kCount, load<V>(sum + v * kCount) + (even[v] + odd[v]));
  }
}

// The same for all columns, a multiple of the lanes.
template <class Real, bool kPairs>
inline void weigh_columns(Running<Real>& running, int columns, Real* scores, int rows, Real unit, Real* output,
                          int value_rows) {
  constexpr int kCount = Lanes<Real>::kCount, kTogether = HEED_REGISTERS >= 32 ? 4 : 2;
  int x = 0;
  for (; x + kTogether * kCount <= columns; x += kTogether * kCount)
    weigh<Real, kTogether, kPairs>(running, x, scores, rows, unit, output, value_rows);
  for (; x + 2 * kCount <= columns; x += 2 * kCount)
    weigh<Real, 2, kPairs>(running, x, scores, rows, unit, output, value_rows);
  if (x < columns) weigh<Real, 1, kPairs>(running, x, scores, rows, unit, output, value_rows);
}

// Writes what is known of a row: `at` is its place among all, `sum` 0 if it sees nothing and `lse` its log-sum-exp
// else. Returns what turns its sum of weighted values into its output.
template <class Real>
HEED_INLINE Real write_row(const Attention& a, const Forward& results, int64_t at, Real highest, Real sum, Real lse,
                           bool broken) {
  if (broken) sum = lse = static_cast<Real>(__builtin_nan(""));
  Real* softmax = static_cast<Real*>(results.softmax);
  softmax[at] = highest;
  softmax[a.batch * a.heads * a.queries + at] = sum;
  static_cast<Real*>(results.lse)[at] = sum == 0 ? -static_cast<Real>(__builtin_inf()) : lse;
  return sum == 0 ? Real(0) : 1 / sum;
}

template <class Stored, class Products>
void forward_panel(const Attention& a, const Forward& results, const uint8_t* finite, const char* packed, int64_t b,
                   int64_t n, int64_t panel, int panel_length, char* memory) {
  typedef typename Products::Real Real;
  constexpr int kCount = Lanes<Real>::kCount;
  const auto s = ForwardScratch<Products>::in(memory, a);
  const Span queries{panel * panel_length, static_cast<int>(least(panel_length, a.queries - panel * panel_length))};
  const int columns = round_up(queries.length, kCount), value_rows = Products::value_rows(a);
  const int64_t group = n / (a.heads / a.groups), blocks = (a.keys + kKeys - 1) / kKeys;

  int64_t lo, hi;
  key_range(a, b, queries, &lo, &hi);
  // Keys of one block: the output is never made relative to a higher score, so it is summed up in rows, as it is
  // stored.
  int row_width = 0;
  if constexpr (Products::kRows)
    if (lo < hi && lo / kKeys == (hi - 1) / kKeys) row_width = Products::row_width(a);
  if (row_width) {
    const Span keys{lo, static_cast<int>(hi - lo)};
    fetch_ahead<Stored, false>(a.key, b, group, keys, static_cast<int>(a.width));
    fetch_ahead<Stored, false>(a.value, b, group, keys, static_cast<int>(a.value_width));
  }
  fetch_ahead<Stored, true>(results.output, b, n, queries, static_cast<int>(a.value_width));
  Products products(a, b, group, packed, s.products);
  products.load_query(n, queries);
  Running<Real> running;
  bool broken[kQueries] = {};
  for (int x = 0; x < kQueries; ++x) running.highest[x] = -static_cast<Real>(__builtin_inf()), running.sum[x] = 0;
  Dropout dropout;
  if (a.dropout > 0) dropout.begin(a, b, n, queries);
  if (row_width == 0)
    for (int c = 0; c < value_rows * kQueries; ++c) s.output[c] = 0;

  for (int64_t block = lo / kKeys; block * kKeys < hi; ++block) {
    const Span keys = Products::kWhole ? block_keys(block, 0, a.keys) : block_keys(block, lo, hi);
    const Sight sight = look<Real>(a, b, n, queries, keys, columns, s.hidden);
    if (sight == Sight::kNone) continue;
    const bool guarded = a.rules > 0 && !finite[(b * a.groups + group) * blocks + block];
    if (guarded) mark_broken<Stored>(a, b, n, group, queries, keys, broken);

    products.scores(keys, guarded, columns, s.scores);
    finish_scores<Real>(a, b, n, queries, keys, columns, sight, s.hidden, s.scores, nullptr);
    weigh_columns<Real, Products::kPairs>(running, columns, s.scores, keys.length, products.unit(), s.output,
                                          row_width ? 0 : value_rows);
    if (a.dropout > 0) {
      Real factors[kQueries];
      for (int y = 0; y < keys.length; ++y) {
        dropout.factors(keys.begin + y, columns, static_cast<Real>(1 / (1 - a.dropout)), factors);
        for (int x = 0; x < columns; ++x) s.scores[y * kQueries + x] *= factors[x];
      }
    }
    if constexpr (Products::kRows)
      if (row_width) {
        products.weighted_rows(keys, guarded, queries.length, s.scores, s.output);
        break;
      }
    products.add_values(keys, guarded, columns, s.scores, s.output);
  }

  Real factors[kQueries] = {};
  for (int x = 0; x < columns; x += kCount)
    store(factors + x,
          load<Vector<Real>>(running.highest + x) * products.unit() + natural_log(load<Vector<Real>>(running.sum + x)));
  for (int x = 0; x < queries.length; ++x) {
    const int64_t i = queries.begin + x;
    const Real sum = running.sum[x];
    const bool bad = broken[x] || (a.rules > 0 && sum != 0 && !row_is_finite<Stored>(a.query, b, i, n, a.width));
    factors[x] = write_row(a, results, (b * a.heads + n) * a.queries + i, running.highest[x], sum, factors[x], bad);
  }
  const int value_width = static_cast<int>(a.value_width);
  if (row_width)
    store_rows<Stored>(s.output, row_width, factors, results.output, b, n, queries, value_width);
  else
    store_transposed<Stored>(s.output, factors, results.output, b, n, queries, value_width);
}

}  // namespace HEED_ISA
}  // namespace heed
