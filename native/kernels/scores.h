// What happens to scores between the product and the softmax: soft cap, bias, ALiBi, mask; and dropout after it.
#pragma once

#include "block.h"

namespace heed {
namespace HEED_ISA {

HEED_INLINE int64_t aligned(const int32_t* align, int64_t stride, int64_t b) { return align ? align[b * stride] : 0; }

// Bounds [lo, hi) outside which no query of the span sees a key.
inline void key_range(const Attention& a, int64_t b, Span queries, int64_t* lo, int64_t* hi) {
  *lo = 0;
  *hi = a.keys;
  const int64_t last = queries.begin + queries.length - 1;
  // hi <= S always holds; lo may lie beyond it.
  for (int r = 0; r < a.rules; ++r) {
    const MaskRule& rule = a.rule[r];
    const int64_t align = aligned(rule.align, rule.align_stride, b);
    switch (rule.rule) {
      case Rule::kWindow:
        if (rule.left < kFar) *lo = most(*lo, queries.begin + align - rule.left);
        if (rule.right < kFar) *hi = least(*hi, last + align + rule.right + 1);
        break;
      case Rule::kPrefix: *hi = least(*hi, most(rule.first[b * rule.first_stride], last + align + 1)); break;
      case Rule::kLengths:
        *hi = least(*hi, rule.first[b * rule.first_stride]);
        if (rule.second && queries.begin >= rule.second[b * rule.second_stride]) *hi = 0;
        break;
      case Rule::kSegments:
      case Rule::kDense: break;
    }
  }
  if (*lo >= *hi) *lo = *hi = 0;  // no block at all, not one of a negative length
}

// The keys of one block that lie within [lo, hi).
HEED_INLINE Span block_keys(int64_t block, int64_t lo, int64_t hi) {
  const int64_t begin = most(block * kKeys, lo), end = least((block + 1) * kKeys, hi);
  return {begin, static_cast<int>(end - begin)};
}

// Whether a rule allows all pairs of a block (1), none (-1) or must be asked for each (0).
inline int block_verdict(const MaskRule& rule, int64_t b, Span queries, Span keys) {
  const int64_t align = aligned(rule.align, rule.align_stride, b);
  const int64_t i0 = queries.begin, i1 = i0 + queries.length - 1, j0 = keys.begin, j1 = j0 + keys.length - 1;
  switch (rule.rule) {
    case Rule::kWindow:
      return (rule.left >= kFar || j0 >= i1 + align - rule.left) &&
             (rule.right >= kFar || j1 <= i0 + align + rule.right);
    case Rule::kPrefix: return j1 < rule.first[b * rule.first_stride] || j1 <= i0 + align;
    case Rule::kLengths:
      return j1 < rule.first[b * rule.first_stride] && (!rule.second || i1 < rule.second[b * rule.second_stride]);
    case Rule::kSegments: {
      const int32_t *q = rule.first + b * rule.first_stride + i0, *k = rule.second + b * rule.second_stride + j0;
      int32_t q_least = q[0], q_most = q[0], k_least = k[0], k_most = k[0];
      for (int x = 1; x < queries.length; ++x) {
        q_least = q[x] < q_least ? q[x] : q_least;
        q_most = q[x] > q_most ? q[x] : q_most;
      }
      for (int y = 1; y < keys.length; ++y) {
        k_least = k[y] < k_least ? k[y] : k_least;
        k_most = k[y] > k_most ? k[y] : k_most;
      }
      if (q_most < k_least || k_most < q_least) return -1;
      return q_least == q_most && k_least == k_most;  // so they are the same number
    }
    case Rule::kDense: return 0;
  }
  return 0;
}

HEED_INLINE bool allows(const MaskRule& rule, int64_t b, int64_t n, int64_t i, int64_t j) {
  const int64_t align = aligned(rule.align, rule.align_stride, b);
  switch (rule.rule) {
    case Rule::kWindow:
      return (rule.left >= kFar || j >= i + align - rule.left) && (rule.right >= kFar || j <= i + align + rule.right);
    case Rule::kPrefix: return j < rule.first[b * rule.first_stride] || j <= i + align;
    case Rule::kLengths:
      return j < rule.first[b * rule.first_stride] && (!rule.second || i < rule.second[b * rule.second_stride]);
    case Rule::kSegments: return rule.first[b * rule.first_stride + i] == rule.second[b * rule.second_stride + j];
    case Rule::kDense: {
      const int64_t* s = rule.dense.stride;
      return static_cast<const uint8_t*>(rule.dense.data)[b * s[0] + n * s[1] + i * s[2] + j * s[3]] != 0;
    }
  }
  return true;
}

HEED_INLINE bool visible(const Attention& a, int64_t b, int64_t n, int64_t i, int64_t j) {
  for (int r = 0; r < a.rules; ++r)
    if (!allows(a.rule[r], b, n, i, j)) return false;
  return true;
}

// What the mask says of one block: nothing to see, all to see, or `hidden` holds -1 where a pair does not count.
enum class Sight { kNone, kAll, kSome };

template <class Real>
inline Sight look(const Attention& a, int64_t b, int64_t n, Span queries, Span keys, int columns,
                  typename Lanes<Real>::Integer* hidden) {
  typedef typename Lanes<Real>::Integer Integer;
  bool asked[kMostRules], all = true;
  for (int r = 0; r < a.rules; ++r) {
    const int verdict = block_verdict(a.rule[r], b, queries, keys);
    if (verdict < 0) return Sight::kNone;
    asked[r] = verdict == 0;
    all = all && !asked[r];
  }
  if (all) return Sight::kAll;
  for (int y = 0; y < keys.length; ++y)
    for (int x = 0; x < columns; ++x) hidden[y * kQueries + x] = 0;
  bool any = false;
  for (int r = 0; r < a.rules; ++r) {
    if (!asked[r]) continue;
    const MaskRule& rule = a.rule[r];
    const int64_t align = aligned(rule.align, rule.align_stride, b);
    switch (rule.rule) {
      case Rule::kWindow:
      case Rule::kPrefix: {
        const bool prefix = rule.rule == Rule::kPrefix;
        const int64_t left = prefix ? kFar : rule.left, right = prefix ? 0 : rule.right;
        const int64_t first = prefix ? rule.first[b * rule.first_stride] : 0;
        for (int y = 0; y < keys.length; ++y) {
          const int64_t j = keys.begin + y;
          if (prefix && j < first) continue;
          // Visible columns: from `from` on and before `to`.
          const int64_t from = right >= kFar ? 0 : j - right - align - queries.begin;
          const int64_t to = left >= kFar ? columns : j + left - align - queries.begin + 1;
          Integer* h = hidden + y * kQueries;
          const int begin = static_cast<int>(least(most(from, 0), columns));
          for (int x = 0; x < begin; ++x) h[x] = -1;
          for (int x = static_cast<int>(most(0, least(to, columns))); x < columns; ++x) h[x] = -1;
        }
        break;
      }
      case Rule::kLengths:
        for (int y = 0; y < keys.length; ++y) {
          Integer* h = hidden + y * kQueries;
          const bool out = keys.begin + y >= rule.first[b * rule.first_stride];
          const int64_t rows = rule.second ? rule.second[b * rule.second_stride] - queries.begin : columns;
          for (int x = out ? 0 : static_cast<int>(most(0, least(rows, columns))); x < columns; ++x) h[x] = -1;
        }
        break;
      case Rule::kSegments: {
        const int32_t* q = rule.first + b * rule.first_stride + queries.begin;
        const int32_t* k = rule.second + b * rule.second_stride + keys.begin;
        for (int y = 0; y < keys.length; ++y)
          for (int x = 0; x < queries.length; ++x) hidden[y * kQueries + x] |= -Integer(q[x] != k[y]);
        break;
      }
      case Rule::kDense: {
        const int64_t* s = rule.dense.stride;
        const uint8_t* from = static_cast<const uint8_t*>(rule.dense.data) + b * s[0] + n * s[1];
        for (int x = 0; x < queries.length; ++x)
          for (int y = 0; y < keys.length; ++y)
            hidden[y * kQueries + x] |= -Integer(!from[(queries.begin + x) * s[2] + (keys.begin + y) * s[3]]);
        break;
      }
    }
  }
  for (int y = 0; y < keys.length && !any; ++y)
    for (int x = 0; x < queries.length; ++x) any |= !hidden[y * kQueries + x];
  return any ? Sight::kSome : Sight::kNone;
}

// scores[y][x] of a block, in place: soft cap, bias, ALiBi, then -inf where hidden. With `slope` it also writes the
// derivative of the soft cap, for the backward pass.
template <class Real>
inline void finish_scores(const Attention& a, int64_t b, int64_t n, Span queries, Span keys, int columns, Sight sight,
                          const typename Lanes<Real>::Integer* hidden, Real* scores, Real* slope) {
  typedef Vector<Real> V;
  constexpr int kCount = Lanes<Real>::kCount;
  if (a.soft_cap > 0) {
    const Real cap = static_cast<Real>(a.soft_cap), inverse = static_cast<Real>(1 / a.soft_cap);
    for (int y = 0; y < keys.length; ++y)
      for (int x = 0; x < columns; x += kCount) {
        const V t = tanh(load<V>(scores + y * kQueries + x) * inverse);
        store(scores + y * kQueries + x, t * cap);
        if (slope) store(slope + y * kQueries + x, 1 - t * t);
      }
  }
  if (a.bias.data) {
    const int64_t* s = a.bias.stride;
    const Real* from = static_cast<const Real*>(a.bias.data) + b * s[0] + n * s[1];
    const Real hiding = static_cast<Real>(kHidingBias), out = -static_cast<Real>(__builtin_inf());
    for (int x = 0; x < queries.length; ++x)
      for (int y = 0; y < keys.length; ++y) {
        const Real bias = from[(queries.begin + x) * s[2] + (keys.begin + y) * s[3]];
        scores[y * kQueries + x] += bias <= hiding ? out : bias;
      }
  }
  if (a.slopes) {
    const Real slope_n = static_cast<const Real*>(a.slopes)[n];
    const int64_t align = aligned(a.slope_align, a.slope_align_stride, b);
    for (int y = 0; y < keys.length; ++y)
      for (int x = 0; x < columns; ++x) {
        const Real d = static_cast<Real>(queries.begin + x + align - keys.begin - y);
        scores[y * kQueries + x] -= slope_n * (d < 0 ? -d : d);
      }
  }
  if (sight == Sight::kSome) {
    const V out = broadcast(-static_cast<Real>(__builtin_inf()));
    for (int y = 0; y < keys.length; ++y)
      for (int x = 0; x < columns; x += kCount) {
        const Integers<Real> h = load<Integers<Real>>(hidden + y * kQueries + x);
        store(scores + y * kQueries + x, h ? out : load<V>(scores + y * kQueries + x));
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

  uint32_t rows[kQueries], threshold = 0;

  void begin(const Attention& a, int64_t b, int64_t n, Span queries) {
    const double scaled = __builtin_rint(a.dropout * 4294967296.0);
    threshold = scaled >= 4294967295.0 ? 4294967295u : static_cast<uint32_t>(scaled);
    const uint32_t key = mixed(mixed(a.seed[0] + 0x9E3779B9u) ^ a.seed[1]);
    const uint32_t head = mixed(mixed(key ^ static_cast<uint32_t>(b)) ^ static_cast<uint32_t>(n));
    for (int x = 0; x < kQueries; ++x) rows[x] = mixed(head ^ static_cast<uint32_t>(queries.begin + x));
  }

  // to[x] = factor where weight (x, j) is kept, else 0.
  template <class Real>
  HEED_INLINE void factors(int64_t j, int columns, Real factor, Real* to) const {
    const uint32_t column = mixed(static_cast<uint32_t>(j) + 0x9E3779B9u);
    for (int x = 0; x < columns; ++x) to[x] = half_mixed(rows[x] ^ column) >= threshold ? factor : Real(0);
  }
};

}  // namespace HEED_ISA
}  // namespace heed
