// Forward pass: one query tile against all keys that it may see.
//
// Memory traffic: the tile is transposed once into scratch that stays in the first-level cache; keys and values stream
// by, a block at a time. The scores of a block (128 x 64) never leave the cache.
#pragma once

#include "scores.h"
#include "strips.h"

namespace heed {
namespace HEED_ISA {

// The two products of the forward pass in vectors; keys and values are read in place.
template <class Stored>
class VectorProducts {
 public:
  typedef typename Compute<Stored>::Type Real;
  static constexpr bool kPairs = false;  // whether weights are pairs of bfloat16
  static constexpr int kKeyUnit = 1;     // keys come in whole units of these, masked ones included
  static constexpr bool kRows = true;    // whether there is `weighted_rows`
  static constexpr bool kStrips = true;  // whether products skip what a mask hides from whole strips

  static size_t bytes(const HeedAttention& a) {
    const size_t wide = static_cast<size_t>(round_up(max(a.head_dim, a.value_dim), kLanes<Real>));
    return sizeof(Real) * (kQueryTile * static_cast<size_t>(a.head_dim) + kKeyBlock * wide);
  }
  static int value_rows(const HeedAttention& a) { return static_cast<int>(a.value_dim); }

  VectorProducts(const HeedAttention& a, int64_t b, int64_t kv_head, const char*, char* memory)
      : a_(a),
        b_(b),
        kv_head_(kv_head),
        query_(reinterpret_cast<Real*>(memory)),
        copy_(query_ + kQueryTile * a.head_dim) {}

  // The true scores are these times the results of `scores`.
  Real unit() const { return 1; }

  void load_query(int64_t n, Span queries) {
    load_transposed<Stored, Real>(a_.query, b_, n, queries, width(), static_cast<Real>(a_.scoring.scale), query_);
  }
  void scores(Span keys, bool has_nonfinite, const Strips<Real>& strips, Real* scores) {
    const auto key = key_block<Stored, Real>(a_.key, b_, kv_head_, keys, width(), has_nonfinite, copy_);
    product_in_strips(strips, key, keys.length, query_, scores, width());
  }
  void add_values(Span keys, bool has_nonfinite, const Strips<Real>& strips, Real* weights, Real* output) {
    const int value_dim = static_cast<int>(a_.value_dim);
    const auto value = key_block<Stored, Real>(a_.value, b_, kv_head_, keys, value_dim, has_nonfinite, copy_);
    add_product_of_strips(strips, swap_axes(value), value_dim, weights, output);
  }
  // The width of the rows of `weighted_rows`, which reads whole vectors of values; 0 if it cannot.
  static int row_width(const HeedAttention& a) {
    const int wide = round_up(a.value_dim, kLanes<Real>);
    return sizeof(Stored) != sizeof(Real) || wide == a.value_dim ? wide : 0;
  }
  // The sums of `add_values`, from zero, one row for each query.
  void weighted_rows(Span keys, bool has_nonfinite, const Strips<Real>& strips, int queries, Real* weights,
                     Real* output) {
    const auto value =
        key_block<Stored, Real>(a_.value, b_, kv_head_, keys, static_cast<int>(a_.value_dim), has_nonfinite, copy_);
    const int wide = row_width(a_);
    for (const auto& strip : strips)
      product(Strided<Real>{weights + strip.at(), 1, kQueryTile},
              static_cast<int>(min(strip.columns, queries - strip.query)), value.data + strip.key * value.row,
              value.row, output + strip.query * wide, wide, wide, strip.keys, false);
  }

 private:
  int width() const { return static_cast<int>(a_.head_dim); }

  const HeedAttention& a_;
  int64_t b_, kv_head_;
  Real *query_, *copy_;
};

template <class Products>
struct ForwardScratch {
  typedef typename Products::Real Real;
  Real *output, *scores;  // V rows of kQueryTile numbers, or a row of features for each query; kKeyBlock rows
  Real* weights;          // the scores, in place, or pairs, see `pair_at`
  uint64_t* hidden;       // a word for each key
  char *products, *program;

  ForwardScratch(const HeedAttention& a, Arena& arena)
      : output(arena.take<Real>(kQueryTile * round_up(Products::value_rows(a), kLanes<Real>))),
        scores(arena.take<Real>(kQueryTile * kKeyBlock)),
        weights(Products::kPairs ? arena.take<Real>(kQueryTile * kKeyBlock / 2) : scores),
        hidden(arena.take<uint64_t>(kKeyBlock)),
        products(arena.take<char>(static_cast<int64_t>(Products::bytes(a)))),
        program(arena.take<char>(static_cast<int64_t>(program_bytes<Real>(a)))) {}
};

// The treatment of non-finite keys and values.
//   kIgnored  none: without a mask, arithmetic alone gives the results
//   kWatched  the same, but the pass fails if it meets one. A non-finite key makes the scores of all queries of a strip
//             non-finite, and a value their sums, whatever its weight: watching one query of each strip is enough.
//   kGuarded  products replace non-finite numbers by 0, and queries that see one are marked: 0 * NaN must not reach
//             other queries
enum class Nonfinite { kIgnored, kWatched, kGuarded };

// Remembers whether it saw a non-finite number.
template <class Real>
class Watch {
 public:
  // x - x is 0 unless x is not finite. Bits, because a sum would wait for the one before.
  HEED_INLINE void see(Vector<Real> x) { differences_ |= (Integers<Real>)(x - x); }
  bool met() const { return any(differences_ != 0); }

 private:
  Integers<Real> differences_{};
};

template <class Stored>
inline bool block_is_finite(const HeedAttention& a, int64_t b, int64_t kv_head, Span keys) {
  for (int y = 0; y < keys.length; ++y)
    if (!row_is_finite<Stored>(a.key, b, keys.begin + y, kv_head, a.head_dim) ||
        !row_is_finite<Stored>(a.value, b, keys.begin + y, kv_head, a.value_dim))
      return false;
  return true;
}

// For passes that cannot watch their results: checks all blocks of a key head, once.
template <class Stored>
void scan_finite(const HeedAttention& a, int64_t b, int64_t kv_head, uint8_t* finite) {
  for (int64_t block = 0; block < key_blocks(a); ++block)
    finite[(b * a.kv_heads + kv_head) * key_blocks(a) + block] =
        block_is_finite<Stored>(a, b, kv_head, block_keys(block, 0, a.key_length));
}

HEED_INLINE bool block_has_nonfinite(const HeedAttention& a, const uint8_t* finite, int64_t b, int64_t kv_head,
                                     int64_t block) {
  return a.rule_count > 0 && !finite[(b * a.kv_heads + kv_head) * key_blocks(a) + block];
}

template <class Stored>
__attribute__((noinline)) void mark_nonfinite(const HeedAttention& a, const Block& block, int64_t kv_head,
                                              BlockMask mask, const uint64_t* hidden, bool* nonfinite) {
  for (int y = 0; y < block.keys.length; ++y) {
    const int64_t j = block.keys.begin + y;
    if (row_is_finite<Stored>(a.key, block.b, j, kv_head, a.head_dim) &&
        row_is_finite<Stored>(a.value, block.b, j, kv_head, a.value_dim))
      continue;
    for (int x = 0; x < block.queries.length; ++x) nonfinite[x] |= sees(mask, hidden, y, x);
  }
}

// The online softmax of some queries: the score that weights are relative to, and the sum of weights, so far.
template <class Real>
struct OnlineSoftmax {
  Real row_max[kQueryTile], row_sum[kQueryTile];

  OnlineSoftmax() {
    for (int x = 0; x < kQueryTile; ++x) row_max[x] = -kInfinity<Real>, row_sum[x] = 0;
  }
};

HEED_INLINE Vector<double> pack_pair(Vector<double> first, Vector<double>) { return first; }
// Packs two vectors of weights as pairs of bfloat16.
HEED_INLINE Vector<float> pack_pair(Vector<float> first, Vector<float> second) {
  return (Vector<float>)(((Words)first + 0x8000u) >> 16 | (((Words)second + 0x8000u) & 0xffff0000u));
}

// The place of the pairs of keys y and y + 1 for a vector of queries from x on. Each vector of queries is apart, with
// all its keys in order: the best layout for loading tiles.
template <class Real>
HEED_INLINE Real* pair_at(Real* pairs, int y, int x) {
  return pairs + x * (kKeyBlock / 2) + y / 2 * kLanes<Real>;
}

// Packs all weights as pairs.
template <class Real>
inline void pair_rows(const Real* weights, int rows, int columns, Real* pairs) {
  for (int y = 0; y < rows; y += 2)
    for (int x = 0; x < columns; x += kLanes<Real>) {
      const Real* at = weights + y * kQueryTile + x;
      store(pair_at(pairs, y, x), pack_pair(load(at), y + 1 < rows ? load(at + kQueryTile) : Vector<Real>{}));
    }
}

// 2^x for weights.
template <bool kPairs, class V>
HEED_INLINE V weight_exp2(V x) {
  if constexpr (kPairs)
    return Simd::short_exp2(x);
  else
    return exp2(x);
}

// Turns the scores of `kVectors` vectors of columns, from column x on, into weights, in place or, with kPairs, as pairs
// elsewhere. The true scores are `unit` times the given ones.
template <class Real, int kVectors, bool kPairs>
inline void online_softmax(OnlineSoftmax<Real>& running, int x, Real* scores, int rows, Real unit, Real* weights,
                           Real* output, int value_rows) {
  typedef Vector<Real> V;
  const Real log2e = unit * kLog2E<Real>;
  // Weights may reach e^5 before they are made relative to a higher score: most blocks then need no second pass over
  // the output, and nothing is lost, as their sum divides them in the end.
  const Real slack = 5 / unit;
  const V lowest = broadcast(-kInfinity<Real>);
  Real *row_max = running.row_max + x, *row_sum = running.row_sum + x;

  // Odd and even rows apart: a dependency chain of half the length.
  V odd[kVectors], even[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) odd[v] = even[v] = lowest;
  for (int y = 0; y < rows; y += 2) {
    const Real *first = scores + y * kQueryTile + x, *second = y + 1 < rows ? first + kQueryTile : first;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      even[v] = larger(load(first + v * kLanes<Real>), even[v]);
      odd[v] = larger(load(second + v * kLanes<Real>), odd[v]);
    }
  }
  V base[kVectors];
  Integers<Real> grown{};
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    odd[v] = larger(odd[v], even[v]);
    base[v] = load(row_max + v * kLanes<Real>);
    grown |= odd[v] > base[v] + slack;
  }
  if (any(grown))
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const V higher = larger(odd[v], base[v]);
      // A column without keys so far has row_max -inf; relative to any finite number its weights are exp(-inf) = 0.
      const V shrink = exp2((base[v] - (higher > lowest ? higher : V{})) * log2e);
      base[v] = higher;
      store(row_max + v * kLanes<Real>, higher);
      store(row_sum + v * kLanes<Real>, load(row_sum + v * kLanes<Real>) * shrink);
      for (int c = 0; c < value_rows; ++c) {
        Real* at = output + c * kQueryTile + x + v * kLanes<Real>;
        store(at, load(at) * shrink);
      }
    }
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    base[v] = base[v] > lowest ? base[v] : V{};
    odd[v] = even[v] = V{};
  }
  // Subtract first: the rounding of a large score times log2e would distort the exponent of the weight. Two short sums
  // are also more accurate than a long one.
  int y = 0;
  for (; y + 1 < rows; y += 2)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      Real* at = scores + y * kQueryTile + x + v * kLanes<Real>;
      const V first = weight_exp2<kPairs>((load(at) - base[v]) * log2e);
      const V second = weight_exp2<kPairs>((load(at + kQueryTile) - base[v]) * log2e);
      if constexpr (kPairs) {
        store(pair_at(weights, y, x + v * kLanes<Real>), pack_pair(first, second));
      } else {
        store(at, first);
        store(at + kQueryTile, second);
      }
      even[v] += first;
      odd[v] += second;
    }
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    if (y < rows) {
      Real* at = scores + y * kQueryTile + x + v * kLanes<Real>;
      const V last = weight_exp2<kPairs>((load(at) - base[v]) * log2e);
      store(kPairs ? pair_at(weights, y, x + v * kLanes<Real>) : at, kPairs ? pack_pair(last, V{}) : last);
      even[v] += last;
    }
    store(row_sum + v * kLanes<Real>, load(row_sum + v * kLanes<Real>) + (even[v] + odd[v]));
  }
}

// The same for columns [x, end), a multiple of the lanes.
template <class Real, bool kPairs>
inline void online_softmax_columns(OnlineSoftmax<Real>& running, int x, int end, Real* scores, int rows, Real unit,
                                   Real* weights, Real* output, int value_rows) {
  constexpr int kTogether = Sizes::kTogether;
  for (; x + kTogether * kLanes<Real> <= end; x += kTogether * kLanes<Real>)
    online_softmax<Real, kTogether, kPairs>(running, x, scores, rows, unit, weights, output, value_rows);
  for (; x + 2 * kLanes<Real> <= end; x += 2 * kLanes<Real>)
    online_softmax<Real, 2, kPairs>(running, x, scores, rows, unit, weights, output, value_rows);
  if (x < end) online_softmax<Real, 1, kPairs>(running, x, scores, rows, unit, weights, output, value_rows);
}

// The same for the keys and queries of each strip of a block.
template <class Real, bool kPairs>
inline void online_softmax_strips(OnlineSoftmax<Real>& running, const Strips<Real>& strips, Real* scores, Real unit,
                                  Real* weights, Real* output, int value_rows) {
  for (const auto& strip : strips) {
    const int skipped = strip.key * kQueryTile;  // 0 for pairs
    online_softmax_columns<Real, kPairs>(running, strip.query, strip.query + strip.columns, scores + skipped,
                                         strip.keys, unit, weights + skipped, output, value_rows);
  }
}

// Writes the statistics of row `at`. `row_sum` 0: it sees nothing; else `lse` is its log-sum-exp. Returns the factor of
// its weighted values.
template <class Real>
HEED_INLINE Real write_row(const HeedAttention& a, const HeedForward& results, int64_t at, Real row_max, Real row_sum,
                           Real lse, bool nonfinite) {
  if (nonfinite) row_sum = lse = kNaN<Real>;
  Real* softmax = static_cast<Real*>(results.softmax);
  softmax[at] = row_max;
  softmax[a.batch * a.heads * a.query_length + at] = row_sum;
  static_cast<Real*>(results.lse)[at] = row_sum == 0 ? -kInfinity<Real> : lse;
  return row_sum == 0 ? Real(0) : 1 / row_sum;
}

// Writes the results of one tile; `finite` as in `Kernels`. Returns false, and writes nothing, if it watched for
// non-finite numbers and met one.
template <class Stored, class Products>
bool forward_tile(const HeedAttention& a, const HeedForward& results, Nonfinite mode, const uint8_t* finite,
                  const char* packed, int64_t b, int64_t n, int64_t tile, char* memory) {
  typedef typename Products::Real Real;
  Arena arena(memory);
  const ForwardScratch<Products> s(a, arena);
  const Span queries = query_tile(a, tile);
  const int columns = round_up(queries.length, kLanes<Real>), value_rows = Products::value_rows(a);
  const int64_t kv_head = n / (a.heads / a.kv_heads);
  Real unit = 1;  // of the scores of the softmax

  int64_t lo, hi;
  key_range(a, b, queries, &lo, &hi);
  // With one block of keys the output is never rescaled, so it is summed in rows, as it is stored.
  int row_width = 0;
  if constexpr (Products::kRows)
    if (lo < hi && lo / kKeyBlock == (hi - 1) / kKeyBlock) row_width = Products::row_width(a);
  if (row_width) {
    const Span keys{lo, static_cast<int>(hi - lo)};
    fetch_ahead<Stored, false>(a.key, b, kv_head, keys, static_cast<int>(a.head_dim));
    fetch_ahead<Stored, false>(a.value, b, kv_head, keys, static_cast<int>(a.value_dim));
  }
  fetch_ahead<Stored, true>(results.output, b, n, queries, static_cast<int>(a.value_dim));
  Products products(a, b, kv_head, packed, s.products);
  products.load_query(n, queries);
  OnlineSoftmax<Real> running;
  bool nonfinite[kQueryTile] = {};
  Watch<Real> watch;
  Dropout dropout;
  if (a.dropout > 0) dropout.begin(a, b, n, queries);
  if (row_width == 0)
    for (int c = 0; c < value_rows * kQueryTile; ++c) s.output[c] = 0;

  for (int64_t at = lo / kKeyBlock; at * kKeyBlock < hi; ++at) {
    const Span keys = block_keys(a, at, lo, hi, Products::kKeyUnit);
    const Block block{b, n, queries, keys, s.program};
    const BlockMask mask = classify_block(a, block, s.hidden);
    if (mask == BlockMask::kEmpty) {
      at = last_empty_block(a, block, at, hi);
      continue;
    }
    const bool has_nonfinite = mode == Nonfinite::kGuarded && (finite ? block_has_nonfinite(a, finite, b, kv_head, at)
                                                                      : !block_is_finite<Stored>(a, b, kv_head, keys));
    if (has_nonfinite) mark_nonfinite<Stored>(a, block, kv_head, mask, s.hidden, nonfinite);

    const Strips<Real> strips(block, Products::kStrips ? mask : BlockMask::kFull, s.hidden, columns);
    products.scores(keys, has_nonfinite, strips, s.scores);
    if (mode == Nonfinite::kWatched)
      for (const auto& strip : strips)
        for (int y = 0; y < strip.keys; ++y) watch.see(load(s.scores + strip.at() + y * kQueryTile));
    unit = apply_score_mods<Real>(a, block, columns, mask, s.hidden, products.unit(), s.scores, nullptr, nullptr);
    const int shrunk_rows = row_width ? 0 : value_rows;
    if (a.dropout > 0) {  // drops single weights, before they are packed as pairs
      online_softmax_strips<Real, false>(running, strips, s.scores, unit, s.scores, s.output, shrunk_rows);
      dropout.apply(keys, columns, s.scores);
      if constexpr (Products::kPairs) pair_rows(s.scores, keys.length, columns, s.weights);
    } else {
      online_softmax_strips<Real, Products::kPairs>(running, strips, s.scores, unit, s.weights, s.output, shrunk_rows);
    }
    if constexpr (Products::kRows)
      if (row_width) {
        products.weighted_rows(keys, has_nonfinite, strips, queries.length, s.weights, s.output);
        break;
      }
    products.add_values(keys, has_nonfinite, strips, s.weights, s.output);
  }
  if (mode == Nonfinite::kWatched) {
    // The output of the first query of each strip: a row, or the first number of each column.
    for (int x = 0; x < queries.length; x += Strips<Real>::kWidth) {
      for (int c = 0; c < row_width; c += kLanes<Real>) watch.see(load(s.output + x * row_width + c));
      for (int c = 0; row_width == 0 && c < value_rows; ++c) watch.see(load(s.output + c * kQueryTile + x));
    }
    if (watch.met()) return false;
  }

  Real factors[kQueryTile] = {};
  for (int x = 0; x < columns; x += kLanes<Real>)
    store(factors + x, load(running.row_max + x) * unit + natural_log(load(running.row_sum + x)));
  for (int x = 0; x < queries.length; ++x) {
    const int64_t i = queries.begin + x;
    const Real row_sum = running.row_sum[x];
    const bool bad =
        nonfinite[x] || (a.rule_count > 0 && row_sum != 0 && !row_is_finite<Stored>(a.query, b, i, n, a.head_dim));
    factors[x] =
        write_row(a, results, (b * a.heads + n) * a.query_length + i, running.row_max[x], row_sum, factors[x], bad);
  }
  const int value_dim = static_cast<int>(a.value_dim);
  if (row_width)
    store_rows<Stored>(s.output, row_width, factors, results.output, b, n, queries, value_dim);
  else
    store_transposed<Stored>(s.output, factors, results.output, b, n, queries, value_dim);
  return true;
}

template <class Stored, class Products>
void forward(const HeedAttention& a, const HeedForward& results, const uint8_t* finite, const char* packed, int64_t b,
             int64_t n, int64_t tile, char* memory) {
  const auto run = [&](Nonfinite mode) {
    return forward_tile<Stored, Products>(a, results, mode, finite, packed, b, n, tile, memory);
  };
  if (a.rule_count == 0)
    run(Nonfinite::kIgnored);
  else if (finite || !run(Nonfinite::kWatched))
    run(Nonfinite::kGuarded);
}

}  // namespace HEED_ISA
}  // namespace heed
