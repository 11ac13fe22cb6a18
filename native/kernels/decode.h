// Few queries against many keys: decoding token by token.
//
// Memory is the limit, so keys and values are read once: all queries that share them are computed together, and the
// keys are split among threads. Each split leaves row_max, row_sum and a weighted sum of values for every query; a
// second step combines the splits, in order.
#pragma once

#include "forward.h"
#include "registry.h"

namespace heed {
namespace HEED_ISA {

// The results of one split of the keys, for each query of each head that shares them.
template <class Real>
struct Split {
  Real *output, *row_max, *row_sum;  // a row of `wide` numbers each, and one number each
  bool* nonfinite;

  static int rows(const HeedAttention& a) { return static_cast<int>(a.heads / a.kv_heads * a.query_length); }
  static int wide(const HeedAttention& a) { return round_up(a.value_dim, kLanes<Real>); }
  Split(const HeedAttention& a, Arena& arena)
      : output(arena.take<Real>(rows(a) * wide(a))),
        row_max(arena.take<Real>(rows(a))),
        row_sum(arena.take<Real>(rows(a))),
        nonfinite(arena.take<bool>(rows(a))) {}
};

template <class Real>
struct DecodeScratch {
  Real *query, *weights;  // rows of round_up(H) and kKeyBlock numbers
  Real* copy;             // a block of keys or values in the compute type
  uint64_t* hidden;       // a word for each key
  char* program;

  static int wide(const HeedAttention& a) { return round_up(a.head_dim, kLanes<Real>); }
  DecodeScratch(const HeedAttention& a, Arena& arena)
      : query(arena.take<Real>(Split<Real>::rows(a) * wide(a))),
        weights(arena.take<Real>(Split<Real>::rows(a) * kKeyBlock)),
        copy(arena.take<Real>(kKeyBlock * round_up(max(a.head_dim, a.value_dim), kLanes<Real>))),
        hidden(arena.take<uint64_t>(kKeyBlock)),
        program(arena.take<char>(static_cast<int64_t>(program_bytes<Real>(a)))) {}
};

// Keys and values of a block are read as streams of consecutive rows, in turns: several streams keep more of the
// hardware's prefetches under way than one. Software prefetches only delayed them.
inline constexpr int kStream = 16;

// scores[r][y] = query[r] . key[y] for all rows r.
template <class From, class Real>
inline void dots(const From* key, ptrdiff_t key_row, int keys, int width, const Real* query, int rows, Real* scores) {
  typedef Vector<Real> V;
  static_assert(kStream % kLanes<Real> == 0 && kKeyBlock % kStream == 0, "streams must be whole vectors of scores");
  constexpr int kStreams = kKeyBlock / kStream;
  const int wide = round_up(width, kLanes<Real>);
  // Several queries read the keys from the first-level cache again, where few of them fit.
  const int length = rows == 1 ? kStream : kKeyBlock;
  for (int y = 0; y < length && y < keys; y += kLanes<Real>)
    for (int r = 0; r < rows; ++r) {
      V sums[kStreams][kLanes<Real>];
      const Real* of_row = query + r * wide;
      for (int i = 0; i < kLanes<Real>; ++i)
        for (int t = 0, k = y + i; t * length + y < keys; ++t, k += length) {
          const From* at = key + (k < keys ? k : keys - 1) * key_row;
          V even{}, odd{};
          int c = 0;
#pragma GCC unroll 2
          for (; c + 2 * kLanes<Real> <= width; c += 2 * kLanes<Real>) {
            even += load_wide(at + c) * load(of_row + c);
            odd += load_wide(at + c + kLanes<Real>) * load(of_row + c + kLanes<Real>);
          }
          for (; c < width; c += kLanes<Real>) even += load_some(at + c, width - c) * load(of_row + c);
          sums[t][i] = even + odd;
        }
      for (int t = 0; t * length + y < keys; ++t)
        store(scores + r * kKeyBlock + t * length + y, sums_of_lanes<Real>(sums[t]));
    }
}

// output[r] += sum over y of weights[r][y] value[y], for kRows rows and kVectors vectors of features.
template <class From, class Real, int kRows, int kVectors>
HEED_INLINE void add_rows(const From* value, ptrdiff_t value_row, int keys, int width, const Real* weights,
                          Real* output, int wide) {
  typedef Vector<Real> V;
  V sum[kRows][kVectors] = {};
  const auto add = [&](auto whole) __attribute__((always_inline)) {
    for (int first = 0; first < kStream; ++first)
      for (int y = first; y < keys; y += kStream) {
        const From* at = value + y * value_row;
        V x[kVectors];
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v)
          x[v] = whole.value ? load_wide(at + v * kLanes<Real>)
                             : load_some(at + v * kLanes<Real>, width - v * kLanes<Real>);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
          for (int v = 0; v < kVectors; ++v) sum[r][v] += weights[r * kKeyBlock + y] * x[v];
      }
  };
  if (width >= kVectors * kLanes<Real>)
    add(Constant<true>{});
  else
    add(Constant<false>{});
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      Real* at = output + r * wide + v * kLanes<Real>;
      store(at, load(at) + sum[r][v]);
    }
}

// The same for all rows and features.
template <class From, class Real>
inline void add_values(const From* value, ptrdiff_t value_row, int keys, int width, const Real* weights, int rows,
                       Real* output, int wide) {
  const auto add = [&](int r, auto together) {
    // Enough sums to keep the multipliers busy, and registers for all of them.
    constexpr int kMost = together.value == 1 ? 8 : kRegisters >= 32 ? 4 : 2, kHalf = kMost > 4 ? kMost / 2 : 1;
    for (int c = 0, vectors = 1; c < wide; c += vectors * kLanes<Real>) {
      const auto columns = [&](auto count) {
        add_rows<From, Real, together.value, count.value>(value + c, value_row, keys, width - c,
                                                          weights + r * kKeyBlock, output + r * wide + c, wide);
      };
      const int left = (wide - c) / kLanes<Real>;
      vectors = left >= kMost ? kMost : left >= kHalf ? kHalf : 1;
      if (vectors == kMost)
        columns(Constant<kMost>{});
      else if (vectors == kHalf)
        columns(Constant<kHalf>{});
      else
        columns(Constant<1>{});
    }
  };
  in_chunks<4>(rows, add);
}

// `apply_score_mods` for scores[y] of query x with all keys of a block, in whole vectors.
template <class Real>
inline void apply_score_mods_to_row(const HeedAttention& a, const Block& block, int x, BlockMask mask,
                                    const uint64_t* hidden, Real* scores) {
  typedef Vector<Real> V;
  const int keys = block.keys.length;
  const auto each = [&](const auto& of) {
    for (int y = 0; y < keys; y += kLanes<Real>) store(scores + y, of(y, load(scores + y)));
  };
  if (!is_plain(a.scoring)) {
    const ScoreOfProduct<Real> score(a.scoring, 1);
    each([&](int, V product) { return score(product); });
  }
  if (const Plan* plan = plan_of(a); plan && plan->modifies)
    modify_scores<Real>(*plan, {block.b, block.n, {block.queries.begin + x, 1}, block.keys, block.program}, kRowLayout,
                        scores, nullptr);
  if (a.bias.data) {
    const int64_t* s = a.bias.stride;
    const Real* from = static_cast<const Real*>(a.bias.data) + block.b * s[0] + block.n * s[1] +
                       (block.queries.begin + x) * s[2] + block.keys.begin * s[3];
    each([&](int y, V score) {
      V bias{};
      if (s[3] == 1)
        bias = load_some(from + y, keys - y);
      else
        for (int lane = 0; lane < kLanes<Real> && y + lane < keys; ++lane) bias[lane] = from[(y + lane) * s[3]];
      return score + (bias <= static_cast<Real>(HEED_MASK_VALUE) ? broadcast(-kInfinity<Real>) : bias);
    });
  }
  if (a.alibi_slopes) {
    const Real slope = static_cast<const Real*>(a.alibi_slopes)[block.n];
    const int64_t first = block.queries.begin + x + align_of(a.alibi_align, block.b) - block.keys.begin;
    each([&](int y, V score) {
      const V d = static_cast<Real>(first - y) - lane_numbers<Real>();
      return score - larger(d, -d) * slope;
    });
  }
  if (mask == BlockMask::kPartial)
    for (int y = 0; y < keys; ++y) scores[y] = hidden[y] >> x & 1 ? -kInfinity<Real> : scores[y];
}

// Turns one row of scores into weights relative to its maximum so far.
template <class Real>
inline void online_softmax_row(Real* scores, int keys, Real* row_max, Real* row_sum, Real* output, int wide) {
  for (int y = keys; y < round_up(keys, kLanes<Real>); ++y) scores[y] = -kInfinity<Real>;
  Vector<Real> lane_max = broadcast(-kInfinity<Real>);
  for (int y = 0; y < keys; y += kLanes<Real>) lane_max = larger(load(scores + y), lane_max);
  Real new_max = *row_max;
  for (int lane = 0; lane < kLanes<Real>; ++lane) new_max = lane_max[lane] > new_max ? lane_max[lane] : new_max;
  if (new_max > *row_max) {
    const Real shrink = exp2(broadcast((*row_max - new_max) * kLog2E<Real>))[0];
    *row_sum *= shrink;
    for (int c = 0; c < wide; c += kLanes<Real>) store(output + c, load(output + c) * shrink);
    *row_max = new_max;
  }
  // No key so far: relative to any finite number the weights are exp(-inf) = 0.
  const Real base = new_max > -kInfinity<Real> ? new_max : Real(0);
  Vector<Real> total{};
  for (int y = 0; y < keys; y += kLanes<Real>) {
    const Vector<Real> weight = exp2((load(scores + y) - base) * kLog2E<Real>);
    total += weight;
    store(scores + y, weight);
  }
  *row_sum += sum_of_lanes<Real>(total);
}

// Attention of all queries of a key head to the keys of blocks [first, last). Returns false if it watched for
// non-finite keys and values and met one; then the split is invalid.
template <class Stored>
bool decode_split(const HeedAttention& a, Nonfinite mode, int64_t b, int64_t kv_head, int64_t first, int64_t last,
                  char* split, char* memory) {
  typedef typename Compute<Stored>::Type Real;
  Arena arena(memory), split_arena(split);
  const DecodeScratch<Real> s(a, arena);
  const Split<Real> result(a, split_arena);
  const int queries_per_kv = static_cast<int>(a.heads / a.kv_heads), length = static_cast<int>(a.query_length);
  const int rows = queries_per_kv * length, wide = Split<Real>::wide(a), query_wide = DecodeScratch<Real>::wide(a);
  const int head_dim = static_cast<int>(a.head_dim), value_dim = static_cast<int>(a.value_dim);
  const Span queries{0, length};
  const bool alike = queries_per_kv == 1 || !mask_differs_by_head(a);
  const bool plain = is_plain(a.scoring) && !a.bias.data && !a.alibi_slopes && !a.program;
  for (int m = 0; m < queries_per_kv; ++m)
    load_rows<Stored, Real>(a.query, b, kv_head * queries_per_kv + m, queries, head_dim,
                            static_cast<Real>(a.scoring.scale), s.query + m * length * query_wide, query_wide);
  for (int r = 0; r < rows; ++r) {
    result.row_max[r] = -kInfinity<Real>, result.row_sum[r] = 0, result.nonfinite[r] = false;
    for (int c = 0; c < wide; ++c) result.output[r * wide + c] = 0;
  }
  Watch<Real> watch;
  int64_t lo, hi;
  key_range(a, b, queries, &lo, &hi);
  for (int64_t at = max(first, lo / kKeyBlock); at < last && at * kKeyBlock < hi; ++at) {
    const Span keys = block_keys(at, lo, hi);
    // Before a key is read: boolean masks often hide whole blocks, such as padding.
    const BlockMask of_all = alike
                                 ? classify_block(a, {b, kv_head * queries_per_kv, queries, keys, s.program}, s.hidden)
                                 : BlockMask::kPartial;
    if (of_all == BlockMask::kEmpty) {
      at = last_empty_block(a, {b, kv_head * queries_per_kv, queries, keys}, at, hi);
      continue;
    }
    if (!alike && rules_out(a, {b, 0, queries, keys})) continue;
    const bool has_nonfinite = mode == Nonfinite::kGuarded && !block_is_finite<Stored>(a, b, kv_head, keys);
    const Stored* key = row<Stored>(a.key, b, keys.begin, kv_head);
    const Stored* value = row<Stored>(a.value, b, keys.begin, kv_head);
    if (has_nonfinite) {
      const auto copy = key_block<Stored, Real>(a.key, b, kv_head, keys, head_dim, true, s.copy);
      dots(copy.data, copy.row, keys.length, head_dim, s.query, rows, s.weights);
    } else {
      dots(key, a.key.row_stride, keys.length, head_dim, s.query, rows, s.weights);
    }
    if (mode == Nonfinite::kWatched)
      for (int y = 0; y < keys.length; y += kLanes<Real>) watch.see(load(s.weights + y));
    for (int m = 0; m < queries_per_kv; ++m) {
      const Block block{b, kv_head * queries_per_kv + m, queries, keys, s.program};
      const BlockMask mask = alike ? of_all : classify_block(a, block, s.hidden);
      Real* weights = s.weights + m * length * kKeyBlock;
      if (mask == BlockMask::kEmpty) {
        for (int i = 0; i < length * kKeyBlock; ++i) weights[i] = -kInfinity<Real>;
        continue;
      }
      if (has_nonfinite) mark_nonfinite<Stored>(a, block, kv_head, mask, s.hidden, result.nonfinite + m * length);
      if (mask == BlockMask::kFull && plain) continue;
      for (int x = 0; x < length; ++x) apply_score_mods_to_row(a, block, x, mask, s.hidden, weights + x * kKeyBlock);
    }
    for (int r = 0; r < rows; ++r)
      online_softmax_row(s.weights + r * kKeyBlock, keys.length, result.row_max + r, result.row_sum + r,
                         result.output + r * wide, wide);
    if (has_nonfinite) {
      const auto copy = key_block<Stored, Real>(a.value, b, kv_head, keys, value_dim, true, s.copy);
      add_values(copy.data, copy.row, keys.length, value_dim, s.weights, rows, result.output, wide);
    } else {
      add_values(value, a.value.row_stride, keys.length, value_dim, s.weights, rows, result.output, wide);
    }
  }
  if (mode == Nonfinite::kWatched)
    for (int c = 0; c < wide; c += kLanes<Real>) watch.see(load(result.output + c));
  return !watch.met();
}

template <class Stored>
void decode(const HeedAttention& a, int64_t b, int64_t kv_head, int64_t first, int64_t last, char* split,
            char* memory) {
  const auto run = [&](Nonfinite mode) {
    return decode_split<Stored>(a, mode, b, kv_head, first, last, split, memory);
  };
  if (a.rule_count == 0)
    run(Nonfinite::kIgnored);
  else if (!run(Nonfinite::kWatched))
    run(Nonfinite::kGuarded);
}

// Combines the splits of a key head and writes the results.
template <class Stored>
void combine_splits(const HeedAttention& a, const HeedForward& results, int64_t b, int64_t kv_head, char* memory,
                    int64_t count) {
  typedef typename Compute<Stored>::Type Real;
  const int queries_per_kv = static_cast<int>(a.heads / a.kv_heads), length = static_cast<int>(a.query_length);
  const int wide = Split<Real>::wide(a), value_dim = static_cast<int>(a.value_dim);
  Arena arena(memory);
  const Split<Real> first(a, arena);
  const auto of_split = [&](int64_t i, auto* piece) {
    return reinterpret_cast<decltype(piece)>(reinterpret_cast<char*>(piece) + static_cast<size_t>(i) * arena.bytes());
  };
  for (int r = 0; r < queries_per_kv * length; ++r) {
    const int64_t n = kv_head * queries_per_kv + r / length, x = r % length;
    Real row_max = -kInfinity<Real>, row_sum = 0;
    bool nonfinite = false, unordered = false;
    for (int64_t i = 0; i < count; ++i) {
      const Real split_max = of_split(i, first.row_max)[r], split_sum = of_split(i, first.row_sum)[r];
      row_max = split_max > row_max ? split_max : row_max;
      nonfinite |= of_split(i, first.nonfinite)[r];
      unordered |= split_sum != split_sum;
    }
    Real shrink[kMaxSplits];
    for (int64_t i = 0; i < count; ++i) {
      const Real split_max = of_split(i, first.row_max)[r];
      shrink[i] = split_max > -kInfinity<Real> ? exp2(broadcast((split_max - row_max) * kLog2E<Real>))[0] : Real(0);
      row_sum += of_split(i, first.row_sum)[r] * shrink[i];
    }
    const bool seen = unordered || !(row_sum == 0);
    if (a.rule_count > 0 && seen) nonfinite = nonfinite || !row_is_finite<Stored>(a.query, b, x, n, a.head_dim);
    const Real factor = write_row(a, results, (b * a.heads + n) * a.query_length + x, row_max, row_sum,
                                  row_max + natural_log(row_sum), nonfinite || unordered);
    Stored* to = row<Stored>(results.output, b, x, n);
    for (int c = 0; c < value_dim; c += kLanes<Real>) {
      Vector<Real> total{};
      for (int64_t i = 0; i < count; ++i) total += load(of_split(i, first.output) + r * wide + c) * shrink[i];
      store_some(to + c, value_dim - c, seen || nonfinite ? total * factor : Vector<Real>{});
    }
  }
}

}  // namespace HEED_ISA
}  // namespace heed
