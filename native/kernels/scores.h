// From products to scores (`HeedScoring`), score modifications before the softmax (program, bias, ALiBi, mask), and
// dropout after it.
#pragma once

#include "rules.h"

namespace heed {
namespace HEED_ISA {

// Why an attention cannot have these numbers, or null. They are well within the range of float, so that products with
// them stay finite.
template <class Real>
const char* problem_of_scoring(const HeedAttention& a) {
  const double scale = a.scoring.scale, cap = a.scoring.soft_cap;
  if (a.score == HEED_ADDITIVE)
    return scale == 1 && cap == 0 ? nullptr : "additive attention has no scale but 1, and no soft cap";
  if (!is_finite(scale)) return "scale must be finite";
  if (!(cap >= 0) || !is_finite(cap)) return "soft_cap must be 0 or a finite number above";
  if (sizeof(Real) == sizeof(double)) return nullptr;
  if (scale < -1e30 || scale > 1e30) return "scale must be in [-1e30, 1e30], or in float64";
  if (cap != 0 && (cap < 1e-30 || cap > 1e30)) return "soft_cap must be 0, or in [1e-30, 1e30], or in float64";
  return nullptr;
}

// Whether scores are the scaled products themselves.
HEED_INLINE bool is_plain(const HeedScoring& scoring) { return !(scoring.soft_cap > 0); }

// The scores of scaled products, for scores that are not plain. The true products are `unit` times the given numbers.
template <class Real>
struct ScoreOfProduct {
  typedef Vector<Real> V;
  const Real cap, inverse;

  HEED_INLINE ScoreOfProduct(const HeedScoring& scoring, Real unit)
      : cap(static_cast<Real>(scoring.soft_cap)), inverse(static_cast<Real>(1 / scoring.soft_cap) * unit) {}
  // Also gives the derivative by the scaled product, unless null.
  HEED_INLINE V operator()(V product, V* slope = nullptr) const {
    const V t = tanh<Real>(product * inverse);
    if (slope) *slope = 1 - t * t;
    return t * cap;
  }
};

// Adds the bias to scores[y][x] * unit of a block; -inf for HEED_MASK_VALUE or less.
template <class Real>
inline void add_bias(const HeedAttention& a, const Block& block, int columns, Real unit, Real* scores) {
  typedef Vector<Real> V;
  const int64_t* s = a.bias.stride;
  const int queries = block.queries.length, keys = block.keys.length;
  const Real* from = static_cast<const Real*>(a.bias.data) + block.b * s[0] + block.n * s[1] +
                     block.queries.begin * s[2] + block.keys.begin * s[3];
  const auto add = [unit](Real* to, V bias) {
    store(to, load(to) * unit + (bias <= static_cast<Real>(HEED_MASK_VALUE) ? broadcast(-kInfinity<Real>) : bias));
  };
  if (s[2] == 0 || s[3] != 1) {  // the same for all queries, or not read in vectors
    for (int y = 0; y < keys; ++y)
      for (int x = 0; x < columns; x += kLanes<Real>) {
        V bias = broadcast(from[y * s[3]]);
        for (int lane = 0; s[2] != 0 && lane < kLanes<Real>; ++lane)
          bias[lane] = x + lane < queries ? from[(x + lane) * s[2] + y * s[3]] : Real(0);
        add(scores + y * kQueryTile + x, bias);
      }
    return;
  }
  for (int x = 0; x < columns; x += kLanes<Real>)
    for (int y = 0; y < keys; y += kLanes<Real>) {
      V square[kLanes<Real>];
#pragma GCC unroll 16
      for (int r = 0; r < kLanes<Real>; ++r)
        square[r] = x + r < queries ? load_some(from + (x + r) * s[2] + y, keys - y) : V{};
      transpose<Real>(square);
      for (int i = 0; i < kLanes<Real> && y + i < keys; ++i) add(scores + (y + i) * kQueryTile + x, square[i]);
    }
}

// Turns products, scores[y][x] of a block, into scores, and applies program, bias, ALiBi and mask, in place. The true
// products are `unit` times the given numbers; returns the unit of the results. For the backward pass, unless null:
// writes the derivative by the products to `slope`, unless scores are plain, and the blocks of values that the plan
// keeps to `kept`.
template <class Real>
inline Real apply_score_mods(const HeedAttention& a, const Block& block, int columns, BlockMask mask,
                             const uint64_t* hidden, Real unit, Real* scores, Real* slope, Real* kept) {
  typedef Vector<Real> V;
  const Span queries = block.queries, keys = block.keys;
  if (!is_plain(a.scoring)) {
    const ScoreOfProduct<Real> score(a.scoring, unit);
    for (int y = 0; y < keys.length; ++y)
      for (int x = 0; x < columns; x += kLanes<Real>) {
        V by_product;
        store(scores + y * kQueryTile + x, score(load(scores + y * kQueryTile + x), &by_product));
        if (slope) store(slope + y * kQueryTile + x, by_product);
      }
    unit = 1;
  }
  if (const Plan* plan = plan_of(a); plan && plan->modifies) {
    Real* const raw = kept && plan->kept_score >= 0 ? kept_block(kept, plan->kept_score) : nullptr;
    for (int y = 0; y < keys.length && (raw || unit != 1); ++y)
      for (int x = 0; x < columns; x += kLanes<Real>) {
        const V score = load(scores + y * kQueryTile + x) * unit;
        store(scores + y * kQueryTile + x, score);
        if (raw) store(raw + y * kQueryTile + x, score);
      }
    modify_scores(*plan, block, kTileLayout, scores, kept);
    unit = 1;
  }
  if (a.bias.data) {
    add_bias(a, block, columns, unit, scores);
    unit = 1;
  }
  if (a.alibi_slopes) {
    const Real slope_n = static_cast<const Real*>(a.alibi_slopes)[block.n];
    const V lane = lane_numbers<Real>();
    const int64_t distance = queries.begin - keys.begin + align_of(a.alibi_align, block.b);  // of the first two
    for (int y = 0; y < keys.length; ++y)
      for (int x = 0; x < columns; x += kLanes<Real>) {
        Real* at = scores + y * kQueryTile + x;
        const V d = lane + static_cast<Real>(distance + x - y);
        store(at, load(at) * unit - larger(d, -d) * slope_n);
      }
    unit = 1;
  }
  if (mask == BlockMask::kPartial) {
    const Vector<Real> out = broadcast(-kInfinity<Real>);
    for (int y = 0; y < keys.length; ++y)
      for (int x = 0; hidden[y] && x < columns; x += kLanes<Real>) {
        Real* at = scores + y * kQueryTile + x;
        store(at, lanes_of<Real>(hidden[y] >> x) ? out : load(at));
      }
  }
  return unit;
}

// Counter-based dropout, the same as heed/ops/backends/tensorflow/portable/dropout.py: arithmetic is modulo 2^32.
struct Dropout {
  static HEED_INLINE uint32_t half_mix(uint32_t x) {
    x *= 0x7FEB352Du;
    x ^= x >> 15;
    return x * 0x846CA68Bu;
  }
  static HEED_INLINE uint32_t mix(uint32_t x) {
    x = half_mix(x ^ x >> 16);
    return x ^ x >> 16;
  }

  uint32_t rows[kQueryTile], threshold = 0;
  double factor = 1;  // of kept weights

  // Hashes of at least this number are kept.
  static HEED_INLINE uint32_t threshold_of(double rate) {
    const double scaled = __builtin_rint(rate * 4294967296.0);
    return scaled >= 4294967295.0 ? 4294967295u : static_cast<uint32_t>(scaled);
  }
  static HEED_INLINE uint32_t head_of(const uint32_t* seed, int64_t b, int64_t n) {
    const uint32_t key = mix(mix(seed[0] + 0x9E3779B9u) ^ seed[1]);
    return mix(mix(key ^ static_cast<uint32_t>(b)) ^ static_cast<uint32_t>(n));
  }
  static HEED_INLINE uint32_t column_of(int64_t j) { return mix(static_cast<uint32_t>(j) + 0x9E3779B9u); }

  void begin(const HeedAttention& a, int64_t b, int64_t n, Span queries) {
    factor = 1 / (1 - a.dropout);
    threshold = threshold_of(a.dropout);
    const uint32_t head = head_of(a.seed, b, n);
    for (int x = 0; x < kQueryTile; ++x) rows[x] = mix(head ^ static_cast<uint32_t>(queries.begin + x));
  }

  // to[x] = the factor of weight (x, j), 0 if it is dropped.
  template <class Real>
  HEED_INLINE void factors(int64_t j, int columns, Real* to) const {
    const Real kept = static_cast<Real>(factor);
    const uint32_t column = column_of(j);
    for (int x = 0; x < columns; ++x) to[x] = half_mix(rows[x] ^ column) >= threshold ? kept : Real(0);
  }

  // Drops weights[y][x] of some keys, in place.
  template <class Real>
  HEED_INLINE void apply(Span keys, int columns, Real* weights) const {
    Real of_row[kQueryTile];
    for (int y = 0; y < keys.length; ++y) {
      factors(keys.begin + y, columns, of_row);
      for (int x = 0; x < columns; ++x) weights[y * kQueryTile + x] *= of_row[x];
    }
  }
};

}  // namespace HEED_ISA
}  // namespace heed
