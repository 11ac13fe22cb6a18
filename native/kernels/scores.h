// What happens to scores between the product and the softmax: soft cap, bias, ALiBi, mask; and dropout after it.
#pragma once

#include "rules.h"

namespace heed {
namespace HEED_ISA {

// scores[y][x] of a block, in place: soft cap, bias, ALiBi, then -inf where hidden. With `slope` it also writes the
// derivative of the soft cap, for the backward pass.
template <class Real>
inline void apply_score_mods(const HeedAttention& a, const Block& block, int columns, BlockMask mask,
                             const typename Lanes<Real>::Integer* hidden, Real* scores, Real* slope) {
  const Span queries = block.queries, keys = block.keys;
  if (a.soft_cap > 0) {
    const Real cap = static_cast<Real>(a.soft_cap), inverse = static_cast<Real>(1 / a.soft_cap);
    for (int y = 0; y < keys.length; ++y)
      for (int x = 0; x < columns; x += kLanes<Real>) {
        const Vector<Real> t = tanh<Real>(load(scores + y * kQueryTile + x) * inverse);
        store(scores + y * kQueryTile + x, t * cap);
        if (slope) store(slope + y * kQueryTile + x, 1 - t * t);
      }
  }
  if (a.bias.data) {
    const int64_t* s = a.bias.stride;
    const Real* from = static_cast<const Real*>(a.bias.data) + block.b * s[0] + block.n * s[1];
    const Real hiding = static_cast<Real>(HEED_MASK_VALUE), out = -kInfinity<Real>;
    for (int x = 0; x < queries.length; ++x)
      for (int y = 0; y < keys.length; ++y) {
        const Real bias = from[(queries.begin + x) * s[2] + (keys.begin + y) * s[3]];
        scores[y * kQueryTile + x] += bias <= hiding ? out : bias;
      }
  }
  if (a.alibi_slopes) {
    const Real slope_n = static_cast<const Real*>(a.alibi_slopes)[block.n];
    const int64_t align = align_of(a.alibi_align, block.b);
    for (int y = 0; y < keys.length; ++y)
      for (int x = 0; x < columns; ++x) {
        const Real d = static_cast<Real>(queries.begin + x + align - keys.begin - y);
        scores[y * kQueryTile + x] -= slope_n * (d < 0 ? -d : d);
      }
  }
  if (mask == BlockMask::kPartial) {
    const Vector<Real> out = broadcast(-kInfinity<Real>);
    for (int y = 0; y < keys.length; ++y)
      for (int x = 0; x < columns; x += kLanes<Real>) {
        const Integers<Real> h = load_as<Integers<Real>>(hidden + y * kQueryTile + x);
        store(scores + y * kQueryTile + x, h ? out : load(scores + y * kQueryTile + x));
      }
  }
}

// Dropout by counter, as heed/ops/backends/tensorflow/portable/dropout.py has it: all arithmetic is modulo 2^32.
struct Dropout {
  static HEED_INLINE uint32_t half_mixed(uint32_t x) {
    x *= 0x7FEB352Du;
    x ^= x >> 15;
    return x * 0x846CA68Bu;
  }
  static HEED_INLINE uint32_t mixed(uint32_t x) {
    x = half_mixed(x ^ x >> 16);
    return x ^ x >> 16;
  }

  uint32_t rows[kQueryTile], threshold = 0;
  double factor = 1;  // of weights that are kept

  // What a number must reach to be kept at this rate.
  static HEED_INLINE uint32_t threshold_of(double rate) {
    const double scaled = __builtin_rint(rate * 4294967296.0);
    return scaled >= 4294967295.0 ? 4294967295u : static_cast<uint32_t>(scaled);
  }
  static HEED_INLINE uint32_t head_of(const uint32_t* seed, int64_t b, int64_t n) {
    const uint32_t key = mixed(mixed(seed[0] + 0x9E3779B9u) ^ seed[1]);
    return mixed(mixed(key ^ static_cast<uint32_t>(b)) ^ static_cast<uint32_t>(n));
  }
  static HEED_INLINE uint32_t column_of(int64_t j) { return mixed(static_cast<uint32_t>(j) + 0x9E3779B9u); }

  void begin(const HeedAttention& a, int64_t b, int64_t n, Span queries) {
    factor = 1 / (1 - a.dropout);
    threshold = threshold_of(a.dropout);
    const uint32_t head = head_of(a.seed, b, n);
    for (int x = 0; x < kQueryTile; ++x) rows[x] = mixed(head ^ static_cast<uint32_t>(queries.begin + x));
  }

  // to[x] = what weight (x, j) is multiplied with, 0 where it is dropped.
  template <class Real>
  HEED_INLINE void factors(int64_t j, int columns, Real* to) const {
    const Real kept = static_cast<Real>(factor);
    const uint32_t column = column_of(j);
    for (int x = 0; x < columns; ++x) to[x] = half_mixed(rows[x] ^ column) >= threshold ? kept : Real(0);
  }

  // weights[y][x] of some keys, in place.
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
