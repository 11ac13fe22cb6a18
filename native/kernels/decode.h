// Few queries against many keys, as when a decoder writes one token after another.
//
// All that counts is to read keys and values once, at the memory's speed: all queries that share them are served
// together, and the keys are split among threads. Each split leaves a highest score, a sum and a weighted sum of values
// for every query; a second step adds the splits up, in their order.
#pragma once

#include "forward.h"
#include "registry.h"

namespace heed {
namespace HEED_ISA {

// What one split of the keys gives, for each query of each head that shares them.
template <class Real>
struct Partial {
  Real *highest, *sum, *output;  // one each, and a row of `wide` numbers
  bool* broken;

  static int rows(const Attention& a) { return static_cast<int>(a.heads / a.groups * a.queries); }
  static int wide(const Attention& a) { return round_up(a.value_width, Lanes<Real>::kCount); }
  static size_t bytes(const Attention& a) {
    const size_t numbers = static_cast<size_t>(rows(a)) * static_cast<size_t>(wide(a) + 2);
    return (numbers * sizeof(Real) + static_cast<size_t>(rows(a)) + 63) / 64 * 64;
  }
  static Partial in(char* memory, const Attention& a) {
    Partial p;
    p.output = reinterpret_cast<Real*>(memory);
    p.highest = p.output + rows(a) * wide(a);
    p.sum = p.highest + rows(a);
    p.broken = reinterpret_cast<bool*>(p.sum + rows(a));
    return p;
  }
};

template <class Real>
struct DecodeScratch {
  Real *query, *weights;  // rows of round_up(H) and kKeys numbers
  Real *scores, *copy;    // one head's, as panels of kQueries; a block of keys or values in the compute type
  typename Lanes<Real>::Integer* hidden;

  static int wide(const Attention& a) { return round_up(a.width, Lanes<Real>::kCount); }
  static size_t bytes(const Attention& a) {
    const size_t rows = static_cast<size_t>(Partial<Real>::rows(a)),
                 most_wide = static_cast<size_t>(round_up(most(a.width, a.value_width), Lanes<Real>::kCount));
    return sizeof(Real) * (rows * (static_cast<size_t>(wide(a)) + kKeys) + 2 * kKeys * kQueries + kKeys * most_wide);
  }
  static DecodeScratch in(char* memory, const Attention& a) {
    const int rows = Partial<Real>::rows(a);
    DecodeScratch s;
    s.query = reinterpret_cast<Real*>(memory);
    s.weights = s.query + rows * wide(a);
    s.scores = s.weights + rows * kKeys;
    s.hidden = reinterpret_cast<typename Lanes<Real>::Integer*>(s.scores + kKeys * kQueries);
    s.copy = reinterpret_cast<Real*>(s.hidden + kKeys * kQueries);
    return s;
  }
};

// Rows that are needed next. They are asked for one by one between other work: all at once would block the way.
template <class From>
struct Ahead {
  const From* data;  // or none
  ptrdiff_t row;
  int rows, width;

  HEED_INLINE void ask(int y) const {
    if (y < rows)
      for (int c = 0; c < width; c += 64 / static_cast<int>(sizeof(From))) __builtin_prefetch(data + y * row + c, 0, 3);
  }
};

// scores[r][y] = query[r] . key[y] for all rows r.
template <class From, class Real>
inline void dots(const From* key, ptrdiff_t key_row, int keys, int width, Ahead<From> ahead, const Real* query,
                 int rows, Real* scores) {
  typedef Vector<Real> V;
  constexpr int kCount = Lanes<Real>::kCount;
  const int wide = round_up(width, kCount);
  for (int y = 0; y < keys; y += kCount) {
    for (int r = 0; r < rows; ++r) {
      V sums[kCount];
      for (int i = 0; i < kCount; ++i) {
        if (r == 0) ahead.ask(y + i);
        const From* at = key + (y + i < keys ? y + i : y) * key_row;
        sums[i] = V{};
        for (int c = 0; c < width; c += kCount) sums[i] += load_some(at + c, width - c) * load<V>(query + r * wide + c);
      }
      transpose<Real>(sums);
      for (int half = kCount / 2; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
      store(scores + r * kKeys + y, sums[0]);
    }
  }
}

// output[r] += sum over y of weights[r][y] value[y], for kRows rows and kVectors vectors of features.
template <class From, class Real, int kRows, int kVectors>
HEED_INLINE void add_rows(const From* value, ptrdiff_t value_row, int keys, int width, Ahead<From> ahead,
                          const Real* weights, Real* output, int wide) {
  typedef Vector<Real> V;
  constexpr int kCount = Lanes<Real>::kCount;
  V sum[kRows][kVectors] = {};
  for (int y = 0; y < keys; ++y, value += value_row) {
    ahead.ask(y);
    V x[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) x[v] = load_some(value + v * kCount, width - v * kCount);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] += weights[r * kKeys + y] * x[v];
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      Real* at = output + r * wide + v * kCount;
      store(at, load<V>(at) + sum[r][v]);
    }
}

template <class From, class Real>
inline void add_values(const From* value, ptrdiff_t value_row, int keys, int width, Ahead<From> ahead,
                       const Real* weights, int rows, Real* output, int wide) {
  constexpr int kCount = Lanes<Real>::kCount;
  for (int c = 0; c < wide;) {
    const bool four = c + 4 * kCount <= wide;
    for (int r = 0; r < rows;) {
      const bool several = r + 4 <= rows;
      const Real* w = weights + r * kKeys;
      Real* to = output + r * wide + c;
      if (four && several)
        add_rows<From, Real, 4, 4>(value + c, value_row, keys, width - c, ahead, w, to, wide);
      else if (four)
        add_rows<From, Real, 1, 4>(value + c, value_row, keys, width - c, ahead, w, to, wide);
      else if (several)
        add_rows<From, Real, 4, 1>(value + c, value_row, keys, width - c, ahead, w, to, wide);
      else
        add_rows<From, Real, 1, 1>(value + c, value_row, keys, width - c, ahead, w, to, wide);
      ahead.rows = 0;
      r += several ? 4 : 1;
    }
    c += four ? 4 * kCount : kCount;
  }
}

// One row of scores becomes weights, relative to the highest so far.
template <class Real>
inline void weigh_row(Real* scores, int keys, Real* highest, Real* sum, Real* output, int wide) {
  typedef Vector<Real> V;
  constexpr int kCount = Lanes<Real>::kCount;
  constexpr Real kLog2E = static_cast<Real>(1.4426950408889634074);
  const Real infinity = static_cast<Real>(__builtin_inf());
  for (int y = keys; y < round_up(keys, kCount); ++y) scores[y] = -infinity;
  V most_of = broadcast(-infinity);
  for (int y = 0; y < keys; y += kCount) most_of = larger(load<V>(scores + y), most_of);
  Real higher = *highest;
  for (int lane = 0; lane < kCount; ++lane) higher = most_of[lane] > higher ? most_of[lane] : higher;
  if (higher > *highest) {
    const Real shrink = exp2(broadcast((*highest - higher) * kLog2E))[0];
    *sum *= shrink;
    for (int c = 0; c < wide; c += kCount) store(output + c, load<V>(output + c) * shrink);
    *highest = higher;
  }
  // All hidden so far: any finite stand-in for -inf makes the weights exp(-inf) = 0.
  const Real base = higher > -infinity ? higher : Real(0);
  V total{};
  for (int y = 0; y < keys; y += kCount) {
    const V weight = exp2((load<V>(scores + y) - base) * kLog2E);
    total += weight;
    store(scores + y, weight);
  }
  *sum += sum_of_lanes<Real>(total);
}

// The keys of blocks [first, last) for all queries of one key head.
template <class Stored>
void decode_split(const Attention& a, int64_t b, int64_t group, int64_t first, int64_t last, char* partial,
                  char* memory) {
  typedef typename Compute<Stored>::Type Real;
  constexpr int kCount = Lanes<Real>::kCount;
  const auto s = DecodeScratch<Real>::in(memory, a);
  const auto result = Partial<Real>::in(partial, a);
  const int members = static_cast<int>(a.heads / a.groups), length = static_cast<int>(a.queries);
  const int rows = members * length, wide = Partial<Real>::wide(a), query_wide = DecodeScratch<Real>::wide(a);
  const int width = static_cast<int>(a.width), value_width = static_cast<int>(a.value_width);
  const Span queries{0, length};
  const int columns = round_up(length, kCount);
  const bool plain = !(a.soft_cap > 0) && !a.bias.data && !a.slopes;
  for (int m = 0; m < members; ++m)
    load_rows<Stored, Real>(a.query, b, group * members + m, queries, width, static_cast<Real>(a.scale),
                            s.query + m * length * query_wide, query_wide);
  for (int r = 0; r < rows; ++r) {
    result.highest[r] = -static_cast<Real>(__builtin_inf()), result.sum[r] = 0, result.broken[r] = false;
    for (int c = 0; c < wide; ++c) result.output[r * wide + c] = 0;
  }
  int64_t lo, hi;
  key_range(a, b, queries, &lo, &hi);
  for (int64_t block = most(first, lo / kKeys); block < last && block * kKeys < hi; ++block) {
    const Span keys = block_keys(block, lo, hi);
    const bool guarded = a.rules > 0 && !block_is_finite<Stored>(a, b, group, keys);
    const Stored* key = row<Stored>(a.key, b, keys.begin, group);
    const Stored* value = row<Stored>(a.value, b, keys.begin, group);
    if (guarded) {
      const auto copy = key_block<Stored, Real>(a.key, b, group, keys, width, true, s.copy);
      dots(copy.data, copy.row, keys.length, width, Ahead<Real>{}, s.query, rows, s.weights);
    } else {
      const Ahead<Stored> values{value, a.value.position, keys.length, value_width};
      dots(key, a.key.position, keys.length, width, values, s.query, rows, s.weights);
    }
    for (int m = 0; m < members; ++m) {
      const int64_t n = group * members + m;
      const Sight sight = look<Real>(a, b, n, queries, keys, columns, s.hidden);
      Real* weights = s.weights + m * length * kKeys;
      if (guarded) mark_broken<Stored>(a, b, n, group, queries, keys, result.broken + m * length);
      if (sight == Sight::kNone) {
        for (int i = 0; i < length * kKeys; ++i) weights[i] = -static_cast<Real>(__builtin_inf());
      } else if (sight == Sight::kSome || !plain) {
        for (int y = 0; y < keys.length; ++y)
          for (int x = 0; x < columns; ++x) s.scores[y * kQueries + x] = x < length ? weights[x * kKeys + y] : Real(0);
        finish_scores<Real>(a, b, n, queries, keys, columns, sight, s.hidden, s.scores, nullptr);
        for (int y = 0; y < keys.length; ++y)
          for (int x = 0; x < length; ++x) weights[x * kKeys + y] = s.scores[y * kQueries + x];
      }
    }
    for (int r = 0; r < rows; ++r)
      weigh_row(s.weights + r * kKeys, keys.length, result.highest + r, result.sum + r, result.output + r * wide, wide);
    if (guarded) {
      const auto copy = key_block<Stored, Real>(a.value, b, group, keys, value_width, true, s.copy);
      add_values(copy.data, copy.row, keys.length, value_width, Ahead<Real>{}, s.weights, rows, result.output, wide);
    } else {
      const Span next = block_keys(block + 1, lo, least(hi, last * kKeys));  // of a length below 1 at the end
      const Ahead<Stored> next_keys{row<Stored>(a.key, b, next.begin, group), a.key.position, next.length, width};
      add_values(value, a.value.position, keys.length, value_width, next_keys, s.weights, rows, result.output, wide);
    }
  }
}

// Adds up the splits of one key head and writes the results.
template <class Stored>
void decode_finish(const Attention& a, const Forward& results, int64_t b, int64_t group, const char* partials,
                   int64_t splits) {
  typedef typename Compute<Stored>::Type Real;
  typedef Vector<Real> V;
  constexpr int kCount = Lanes<Real>::kCount;
  constexpr Real kLog2E = static_cast<Real>(1.4426950408889634074);
  const Real infinity = static_cast<Real>(__builtin_inf());
  const int members = static_cast<int>(a.heads / a.groups), length = static_cast<int>(a.queries);
  const int wide = Partial<Real>::wide(a), value_width = static_cast<int>(a.value_width);
  const auto split = [&](int64_t i) {
    return Partial<Real>::in(const_cast<char*>(partials) + static_cast<size_t>(i) * Partial<Real>::bytes(a), a);
  };
  for (int r = 0; r < members * length; ++r) {
    const int64_t n = group * members + r / length, x = r % length;
    Real highest = -infinity, sum = 0;
    bool bad = false, unordered = false;
    for (int64_t i = 0; i < splits; ++i) {
      const auto p = split(i);
      highest = p.highest[r] > highest ? p.highest[r] : highest;
      bad |= p.broken[r];
      unordered |= p.sum[r] != p.sum[r];
    }
    Real shrink[kMostSplits];
    for (int64_t i = 0; i < splits; ++i) {
      const auto p = split(i);
      shrink[i] = p.highest[r] > -infinity ? exp2(broadcast((p.highest[r] - highest) * kLog2E))[0] : Real(0);
      sum += p.sum[r] * shrink[i];
    }
    const bool seen = unordered || !(sum == 0);
    if (a.rules > 0 && seen) bad = bad || !row_is_finite<Stored>(a.query, b, x, n, a.width);
    const Real factor = write_row(a, results, (b * a.heads + n) * a.queries + x, highest, sum,
                                  highest + natural_log(sum), bad || unordered);
    Stored* to = row<Stored>(results.output, b, x, n);
    for (int c = 0; c < value_width; c += kCount) {
      V total{};
      for (int64_t i = 0; i < splits; ++i) total += load<V>(split(i).output + r * wide + c) * shrink[i];
      store_some(to + c, value_width - c, seen || bad ? total * factor : V{});
    }
  }
}

}  // namespace HEED_ISA
}  // namespace heed
