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
    const size_t wide = static_cast<size_t>(most(a.width, a.value_width));
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

template <class Stored>
void forward_panel(const Attention& a, const Forward& results, const uint8_t* finite, int64_t b, int64_t n,
                   int64_t panel, int panel_length, char* memory) {
  typedef typename Compute<Stored>::Type Real;
  typedef Vector<Real> V;
  constexpr int kCount = Lanes<Real>::kCount;
  constexpr Real kLog2E = static_cast<Real>(1.4426950408889634074);
  const Real infinity = static_cast<Real>(__builtin_inf());
  const auto s = ForwardScratch<Real>::in(memory, a);
  const Span queries{panel * panel_length, static_cast<int>(least(panel_length, a.queries - panel * panel_length))};
  const int columns = round_up(queries.length, kCount);
  const int64_t group = n / (a.heads / a.groups), blocks = (a.keys + kKeys - 1) / kKeys;
  const int width = static_cast<int>(a.width), value_width = static_cast<int>(a.value_width);

  load_transposed<Stored, Real>(a.query, b, n, queries, width, static_cast<Real>(a.scale), s.query);
  for (int c = 0; c < value_width * kQueries; ++c) s.output[c] = 0;
  Real highest[kQueries], sum[kQueries];
  bool broken[kQueries] = {};
  for (int x = 0; x < kQueries; ++x) highest[x] = -infinity, sum[x] = 0;
  Dropout dropout;
  if (a.dropout > 0) dropout.begin(a, b, n, queries);

  int64_t lo, hi;
  key_range(a, b, queries, &lo, &hi);
  for (int64_t block = lo / kKeys; block * kKeys < hi; ++block) {
    const Span keys{block * kKeys, static_cast<int>(least(kKeys, a.keys - block * kKeys))};
    const Sight sight = look<Real>(a, b, n, queries, keys, columns, s.hidden);
    if (sight == Sight::kNone) continue;
    const bool guarded = a.rules > 0 && !finite[(b * a.groups + group) * blocks + block];
    if (guarded) mark_broken<Stored>(a, b, n, group, queries, keys, broken);

    const auto key = key_block<Stored, Real>(a.key, b, group, keys, width, guarded, s.copy);
    product(key, keys.length, s.query, kQueries, s.scores, kQueries, columns, width, false);
    finish_scores<Real>(a, b, n, queries, keys, columns, sight, s.hidden, s.scores, nullptr);

    for (int x = 0; x < columns; x += kCount) {
      V higher = load<V>(highest + x);
      for (int y = 0; y < keys.length; ++y) higher = larger(load<V>(s.scores + y * kQueries + x), higher);
      const V before = load<V>(highest + x);
      // A column that has seen nothing yet has maximum -inf; any finite stand-in makes its weights exp(-inf) = 0.
      const V base = (higher > -infinity ? higher : V{}) * kLog2E;
      const V shrink = exp2(before * kLog2E - base);
      // Four short sums: more accurate than one long one, and not waiting for each other.
      V parts[4] = {};
      for (int y = 0; y < keys.length; ++y) {
        Real* at = s.scores + y * kQueries + x;
        const V weight = exp2(load<V>(at) * kLog2E - base);
        parts[y & 3] += weight;
        store(at, weight);
      }
      store(highest + x, higher);
      store(sum + x, load<V>(sum + x) * shrink + ((parts[0] + parts[1]) + (parts[2] + parts[3])));
      bool same = true;
      for (int lane = 0; lane < kCount; ++lane) same = same && shrink[lane] == 1;
      if (!same)
        for (int c = 0; c < value_width; ++c) {
          Real* at = s.output + c * kQueries + x;
          store(at, load<V>(at) * shrink);
        }
    }
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
  for (int x = 0; x < queries.length; ++x) {
    const bool seen = !(highest[x] == -infinity) && !(sum[x] == 0);
    bool bad = broken[x];
    if (a.rules > 0 && seen) bad = bad || !row_is_finite<Stored>(a.query, b, queries.begin + x, n, a.width);
    const Real nan = static_cast<Real>(__builtin_nan(""));
    const Real factor = bad ? nan : seen ? 1 / sum[x] : Real(0);
    Stored* to = row<Stored>(results.output, b, queries.begin + x, n);
    for (int c = 0; c < value_width; ++c) narrow(seen || bad ? s.output[c * kQueries + x] * factor : Real(0), to + c);
    lse[x] = bad ? nan : seen ? highest[x] + natural_log(sum[x]) : -infinity;
  }
}

}  // namespace HEED_ISA
}  // namespace heed
