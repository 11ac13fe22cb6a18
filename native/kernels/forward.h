// Forward: one panel of queries against all the keys that it may see.
//
// Memory traffic: the panel is transposed once into scratch that stays in the first-level cache; keys and values stream
// by, one block at a time, read where they lie. Scores of a block (96 x 64) never leave the cache.
#pragma once

#include "scores.h"

namespace heed {
namespace HEED_ISA {

template <class Real>
struct ForwardScratch {
  Real* query;   // H panels of kQueries
  Real* output;  // V panels
  Real* scores;  // kKeys panels
  typename Lanes<Real>::Integer* hidden;
  Real* copy;  // a block of keys or values in the compute type

  static size_t bytes(const Attention& a) {
    const size_t wide = static_cast<size_t>(round_up(most(a.width, a.value_width), Lanes<Real>::kCount));
    return sizeof(Real) * (kQueries * static_cast<size_t>(a.width + a.value_width + 2 * kKeys) + kKeys * wide) + 64;
  }
  static ForwardScratch in(char* memory, const Attention& a) {
    ForwardScratch s;
    s.query = reinterpret_cast<Real*>(memory);
    s.output = s.query + kQueries * a.width;
    s.scores = s.output + kQueries * a.value_width;
    s.hidden = reinterpret_cast<typename Lanes<Real>::Integer*>(s.scores + kQueries * kKeys);
    s.copy = reinterpret_cast<Real*>(s.hidden + kQueries * kKeys);
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

// Turns the scores of `kVectors` vectors of columns, from column x on, into weights.
template <class Real, int kVectors>
inline void weigh(Running<Real>& running, int x, Real* scores, int rows, Real* output, int value_width) {
  typedef Vector<Real> V;
  constexpr int kCount = Lanes<Real>::kCount;
  constexpr Real kLog2E = static_cast<Real>(1.4426950408889634074);
  // Weights may exceed 1 by this factor (of e) before they are made relative to a higher score: most blocks then need
  // no second pass over the output, and nothing is lost, as their sum divides them in the end.
  constexpr Real kSlack = 5;
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
    grown |= odd[v] > base[v] + kSlack;
  }
  if (any(grown))
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const V higher = larger(odd[v], base[v]);
      // A column that has seen nothing yet has highest -inf; with any finite stand-in its weights are exp(-inf) = 0.
      const V shrink = exp2(base[v] * kLog2E - (higher > lowest ? higher : V{}) * kLog2E);
      base[v] = higher;
      store(highest + v * kCount, higher);
      store(sum + v * kCount, load<V>(sum + v * kCount) * shrink);
      for (int c = 0; c < value_width; ++c) {
        Real* at = output + c * kQueries + x + v * kCount;
        store(at, load<V>(at) * shrink);
      }
    }
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    base[v] = (base[v] > lowest ? base[v] : V{}) * kLog2E;
    odd[v] = even[v] = V{};
  }
  // Two short sums are also more accurate than one long one.
  int y = 0;
  for (; y + 1 < rows; y += 2)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      Real* at = scores + y * kQueries + x + v * kCount;
      const V first = exp2(load<V>(at) * kLog2E - base[v]);
      const V second = exp2(load<V>(at + kQueries) * kLog2E - base[v]);
      store(at, first);
      store(at + kQueries, second);
      even[v] += first;
      odd[v] += second;
    }
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    if (y < rows) {
      Real* at = scores + y * kQueries + x + v * kCount;
      const V last = exp2(load<V>(at) * kLog2E - base[v]);
      store(at, last);
      even[v] += last;
    }
    store(sum + v * kCount, load<V>(sum + v * kCount) + (even[v] + odd[v]));
  }
}

template <class Stored>
void forward_panel(const Attention& a, const Forward& results, const uint8_t* finite, int64_t b, int64_t n,
                   int64_t panel, int panel_length, char* memory) {
  typedef typename Compute<Stored>::Type Real;
  constexpr int kCount = Lanes<Real>::kCount;
  constexpr int kTogether = HEED_REGISTERS >= 32 ? 4 : 2;
  const Real infinity = static_cast<Real>(__builtin_inf()), nan = static_cast<Real>(__builtin_nan(""));
  const auto s = ForwardScratch<Real>::in(memory, a);
  const Span queries{panel * panel_length, static_cast<int>(least(panel_length, a.queries - panel * panel_length))};
  const int columns = round_up(queries.length, kCount);
  const int64_t group = n / (a.heads / a.groups), blocks = (a.keys + kKeys - 1) / kKeys;
  const int width = static_cast<int>(a.width), value_width = static_cast<int>(a.value_width);

  fetch_ahead<Stored, true>(results.output, b, n, queries, value_width);
  load_transposed<Stored, Real>(a.query, b, n, queries, width, static_cast<Real>(a.scale), s.query);
  for (int c = 0; c < value_width * kQueries; ++c) s.output[c] = 0;
  Running<Real> running;
  bool broken[kQueries] = {};
  for (int x = 0; x < kQueries; ++x) running.highest[x] = -infinity, running.sum[x] = 0;
  Dropout dropout;
  if (a.dropout > 0) dropout.begin(a, b, n, queries);

  int64_t lo, hi;
  key_range(a, b, queries, &lo, &hi);
  for (int64_t block = lo / kKeys; block * kKeys < hi; ++block) {
    const Span keys = block_keys(block, lo, hi);
    const Sight sight = look<Real>(a, b, n, queries, keys, columns, s.hidden);
    if (sight == Sight::kNone) continue;
    const bool guarded = a.rules > 0 && !finite[(b * a.groups + group) * blocks + block];
    if (guarded) mark_broken<Stored>(a, b, n, group, queries, keys, broken);

    const auto key = key_block<Stored, Real>(a.key, b, group, keys, width, guarded, s.copy);
    product(key, keys.length, s.query, kQueries, s.scores, kQueries, columns, width, false);
    finish_scores<Real>(a, b, n, queries, keys, columns, sight, s.hidden, s.scores, nullptr);
    int x = 0;
    for (; x + kTogether * kCount <= columns; x += kTogether * kCount)
      weigh<Real, kTogether>(running, x, s.scores, keys.length, s.output, value_width);
    for (; x < columns; x += kCount) weigh<Real, 1>(running, x, s.scores, keys.length, s.output, value_width);
    if (a.dropout > 0) {
      Real factors[kQueries];
      for (int y = 0; y < keys.length; ++y) {
        dropout.factors(keys.begin + y, columns, static_cast<Real>(1 / (1 - a.dropout)), factors);
        for (int x = 0; x < columns; ++x) s.scores[y * kQueries + x] *= factors[x];
      }
    }
    const auto value = key_block<Stored, Real>(a.value, b, group, keys, value_width, guarded, s.copy);
    product(flipped(value), value_width, s.scores, kQueries, s.output, kQueries, columns, keys.length, true);
  }

  Real* lse = static_cast<Real*>(results.lse) + (b * a.heads + n) * a.queries + queries.begin;
  Real factors[kQueries] = {};
  for (int x = 0; x < queries.length; ++x) {
    const Real highest = running.highest[x], sum = running.sum[x];
    const bool seen = !(highest == -infinity) && !(sum == 0);
    bool bad = broken[x];
    if (a.rules > 0 && seen) bad = bad || !row_is_finite<Stored>(a.query, b, queries.begin + x, n, a.width);
    factors[x] = bad ? nan : seen ? 1 / sum : Real(0);
    lse[x] = bad ? nan : seen ? highest + natural_log(sum) : -infinity;
  }
  store_transposed<Stored>(s.output, factors, results.output, b, n, queries, value_width);
}

}  // namespace HEED_ISA
}  // namespace heed
