// Backward: the queries of some heads that share one key head, panel by panel, against the keys they see.
//
// Scores are computed once more, and weights from what the forward pass kept of each row. Gradients of keys and values
// are summed in scratch of the compute type that one task owns, so no order of threads can change a result. Several
// panels go over the keys together: the keys, the values and the sums of their gradients, too large for the caches,
// come by that much less often.
#pragma once

#include "decode.h"
#include "forward.h"

namespace heed {
namespace HEED_ISA {

inline constexpr int kPanelsTogether = 8;

// What is prepared for one panel of queries. A weight is exp(score - highest) / sum, and as only sums of it times what
// comes in for its row are wanted, that is divided by the sum instead: the gradient of the output and `delta`. Rows
// without keys, and rows that hold or see something which is not finite, add nothing: their `highest` becomes infinite
// and their weights 0. The latter, `broken`, are written as NaN where they reach.
template <class Real>
struct QueryPanel {
  Real *query, *query_rows, *output_gradient, *output_gradient_rows, *query_gradient;
  Real highest[kQueries], delta[kQueries];
  bool broken[kQueries], any_broken;
  bool any_idle;      // whether any row adds nothing
  int64_t n, lo, hi;  // head, and the keys that may be seen
  Span queries;
  Dropout dropout;
};

template <class Real>
struct BackwardScratch {
  QueryPanel<Real>* panels;
  Real *weights, *weight_gradients, *slope, *factors;
  typename Lanes<Real>::Integer* hidden;
  Real *key_copy, *value_copy;

  static int row_width(int64_t width) { return round_up(width, Lanes<Real>::kCount); }
  static size_t panel_bytes() { return (sizeof(QueryPanel<Real>) * kPanelsTogether + 63) / 64 * 64; }
  static size_t bytes(const Attention& a) {
    const size_t h = static_cast<size_t>(row_width(a.width)), v = static_cast<size_t>(row_width(a.value_width));
    return panel_bytes() +
           sizeof(Real) * (kQueries * (kPanelsTogether * (3 * h + 2 * v) + 5 * kKeys) + kKeys * (h + v)) + 64;
  }
  static BackwardScratch in(char* memory, const Attention& a) {
    const int h = row_width(a.width), v = row_width(a.value_width);
    BackwardScratch s;
    s.panels = reinterpret_cast<QueryPanel<Real>*>(memory);
    Real* at = reinterpret_cast<Real*>(memory + panel_bytes());
    auto take = [&at](int numbers) {
      Real* here = at;
      at += numbers;
      return here;
    };
    for (int p = 0; p < kPanelsTogether; ++p) {
      s.panels[p].query = take(kQueries * h);
      s.panels[p].query_rows = take(kQueries * h);
      s.panels[p].query_gradient = take(kQueries * h);
      s.panels[p].output_gradient = take(kQueries * v);
      s.panels[p].output_gradient_rows = take(kQueries * v);
    }
    s.weights = take(kQueries * kKeys);
    s.weight_gradients = take(kQueries * kKeys);
    s.slope = take(kQueries * kKeys);
    s.factors = take(kQueries * kKeys);
    s.hidden = reinterpret_cast<typename Lanes<Real>::Integer*>(take(kQueries * kKeys));
    s.key_copy = take(kKeys * h);
    s.value_copy = take(kKeys * v);
    return s;
  }
};

template <class Stored, class Real = typename Compute<Stored>::Type>
void prepare_panel(const Attention& a, const Backward& pass, int64_t b, int64_t n, Span queries, QueryPanel<Real>& p) {
  typedef Vector<Real> V;
  constexpr int kCount = Lanes<Real>::kCount;
  const Real infinity = static_cast<Real>(__builtin_inf()), scale = static_cast<Real>(a.scale);
  const int width = static_cast<int>(a.width), value_width = static_cast<int>(a.value_width);
  const int key_row = round_up(width, kCount), value_row = round_up(value_width, kCount);
  p.n = n;
  p.queries = queries;
  p.any_broken = p.any_idle = false;
  key_range(a, b, queries, &p.lo, &p.hi);
  load_transposed<Stored, Real>(a.query, b, n, queries, width, scale, p.query);
  load_rows<Stored, Real>(a.query, b, n, queries, width, scale, p.query_rows, key_row);
  load_transposed<Stored, Real>(pass.output_gradient, b, n, queries, value_width, Real(1), p.output_gradient);
  load_rows<Stored, Real>(pass.output_gradient, b, n, queries, value_width, Real(1), p.output_gradient_rows, value_row);
  for (int c = 0; c < width * kQueries; ++c) p.query_gradient[c] = 0;
  if (a.dropout > 0) p.dropout.begin(a, b, n, queries);

  const int64_t first = (b * a.heads + n) * a.queries + queries.begin;
  const Real* highest = static_cast<const Real*>(pass.softmax) + first;
  const Real* sum = highest + a.batch * a.heads * a.queries;
  Real share[kQueries] = {};  // 1 / sum, 0 for rows that add nothing
  for (int x = 0; x < kQueries; ++x) {
    p.highest[x] = infinity, p.delta[x] = 0, p.broken[x] = false;
    if (x >= queries.length) continue;
    const int64_t i = queries.begin + x;
    const Real from_lse = pass.lse_gradient ? static_cast<const Real*>(pass.lse_gradient)[first + x] : Real(0);
    const bool seen = sum[x] != 0;
    if (seen && a.rules > 0)
      p.broken[x] = sum[x] != sum[x] || !is_finite(from_lse) || !row_is_finite<Stored>(a.query, b, i, n, a.width) ||
                    !row_is_finite<Stored>(pass.output_gradient, b, i, n, a.value_width);
    if (!seen || p.broken[x]) {
      p.any_broken |= p.broken[x];
      p.any_idle = true;
      for (int c = 0; c < width; ++c) p.query_rows[x * key_row + c] = 0;
      continue;
    }
    const Stored* output = row<Stored>(pass.output, b, i, n);
    const Stored* gradient = row<Stored>(pass.output_gradient, b, i, n);
    V total{};
    for (int c = 0; c < value_width; c += kCount)
      total += load_some(output + c, value_width - c) * load_some(gradient + c, value_width - c);
    p.highest[x] = highest[x];
    share[x] = 1 / sum[x];
    p.delta[x] = (sum_of_lanes<Real>(total) - from_lse) * share[x];
  }
  for (int x = 0; x < queries.length; ++x) {
    Real* rows = p.output_gradient_rows + x * value_row;
    for (int c = 0; c < value_row; c += kCount) store(rows + c, share[x] == 0 ? V{} : load<V>(rows + c) * share[x]);
  }
  for (int x = 0; x < queries.length; x += kCount) {
    const V factor = load<V>(share + x);
    for (int c = 0; c < value_width; ++c) {
      Real* at = p.output_gradient + c * kQueries + x;
      store(at, factor == 0 ? V{} : load<V>(at) * factor);
    }
  }
}

// Scores become weights (times the sum of their row), and gradients those of the scores, before the soft cap.
// `unit` as in `VectorProducts`.
template <class Real>
inline void score_gradients(const QueryPanel<Real>& p, int rows, int columns, Real unit, Real* scores,
                            Real* gradients) {
  typedef Vector<Real> V;
  const Real log2e = unit * static_cast<Real>(1.4426950408889634074);
  for (int y = 0; y < rows; ++y)
    for (int x = 0; x < columns; x += Lanes<Real>::kCount) {
      Real *score = scores + y * kQueries + x, *gradient = gradients + y * kQueries + x;
      const V weight = exp2((load<V>(score) - load<V>(p.highest + x)) * log2e);
      store(gradient, weight * (load<V>(gradient) - load<V>(p.delta + x)));
      store(score, weight);
    }
}

template <class Real>
inline void multiply(Real* numbers, const Real* factors, int rows, int columns) {
  typedef Vector<Real> V;
  for (int y = 0; y < rows; ++y)
    for (int x = 0; x < columns; x += Lanes<Real>::kCount) {
      Real* at = numbers + y * kQueries + x;
      store(at, load<V>(at) * load<V>(factors + y * kQueries + x));
    }
}

// Scores as the forward pass computes them, to the last bit. Where scores are large, other roundings of them would give
// weights whose sum is far from 1.
template <class Stored>
class VectorScores {
 public:
  typedef typename Compute<Stored>::Type Real;

  static size_t bytes(const Attention& a) {
    return few_queries(a) ? sizeof(Real) * static_cast<size_t>(kKeys * a.queries) : 0;
  }
  VectorScores(const Attention& a, int64_t, int64_t, char* memory) : a_(a), rows_(reinterpret_cast<Real*>(memory)) {}

  Real unit() const { return 1; }

  // Of a panel and a block of keys, which are given as they lie as well.
  void operator()(const QueryPanel<Real>& p, Span keys, Strided<Real> key, bool, Real* scores) {
    const int width = static_cast<int>(a_.width), columns = round_up(p.queries.length, Lanes<Real>::kCount);
    if (!few_queries(a_)) return product(key, keys.length, p.query, kQueries, scores, kQueries, columns, width, false);
    dots(key.data, key.row, keys.length, width, Ahead<Real>{}, p.query_rows, p.queries.length, rows_);
    for (int y = 0; y < keys.length; ++y)
      for (int x = 0; x < columns; ++x)
        scores[y * kQueries + x] = x < p.queries.length ? rows_[x * kKeys + y] : Real(0);
  }

 private:
  const Attention& a_;
  Real* rows_;
};

// One panel against one block of keys: `s.weights` holds the weights, as they were dropped, and `s.weight_gradients`
// the gradients of the scores, before the soft cap.
template <class Real, class Scores>
inline void block_gradients(const Attention& a, const BackwardScratch<Real>& s, Scores& scores,
                            const QueryPanel<Real>& p, int64_t b, Span keys, Strided<Real> key, Strided<Real> value,
                            bool guarded, Sight sight) {
  const int value_width = static_cast<int>(a.value_width);
  const int columns = round_up(p.queries.length, Lanes<Real>::kCount);
  scores(p, keys, key, guarded, s.weights);
  for (int x = 0; p.any_idle && x < p.queries.length; ++x)
    for (int y = 0; p.highest[x] == static_cast<Real>(__builtin_inf()) && y < keys.length; ++y)
      s.weights[y * kQueries + x] = 0;
  finish_scores<Real>(a, b, p.n, p.queries, keys, columns, sight, s.hidden, s.weights, s.slope);
  product(value, keys.length, p.output_gradient, kQueries, s.weight_gradients, kQueries, columns, value_width, false);
  if (a.dropout > 0) {
    for (int y = 0; y < keys.length; ++y)
      p.dropout.factors(keys.begin + y, columns, static_cast<Real>(1 / (1 - a.dropout)), s.factors + y * kQueries);
    multiply(s.weight_gradients, s.factors, keys.length, columns);
  }
  score_gradients(p, keys.length, columns, scores.unit(), s.weights, s.weight_gradients);
  if (a.dropout > 0) multiply(s.weights, s.factors, keys.length, columns);
}

// The same, and adds to the gradients of both.
template <class Real, class Scores>
void panel_against_keys(const Attention& a, const BackwardScratch<Real>& s, Scores& scores, const QueryPanel<Real>& p,
                        int64_t b, Span keys, Strided<Real> key, Strided<Real> value, bool guarded, Real* key_gradient,
                        Real* value_gradient) {
  constexpr int kCount = Lanes<Real>::kCount;
  const int width = static_cast<int>(a.width), value_width = static_cast<int>(a.value_width);
  const int key_row = round_up(width, kCount), value_row = round_up(value_width, kCount);
  const int columns = round_up(p.queries.length, kCount), rows = p.queries.length;
  const Sight sight = look<Real>(a, b, p.n, p.queries, keys, columns, s.hidden);
  if (sight == Sight::kNone) return;
  block_gradients(a, s, scores, p, b, keys, key, value, guarded, sight);
  if (a.soft_cap > 0) multiply(s.weight_gradients, s.slope, keys.length, columns);

  product(flipped(key), width, s.weight_gradients, kQueries, p.query_gradient, kQueries, columns, keys.length, true);
  product(Strided<Real>{s.weights, kQueries, 1}, keys.length, p.output_gradient_rows, value_row,
          value_gradient + keys.begin * value_row, value_row, value_row, rows, true);
  product(Strided<Real>{s.weight_gradients, kQueries, 1}, keys.length, p.query_rows, key_row,
          key_gradient + keys.begin * key_row, key_row, key_row, rows, true);
  if (!p.any_broken) return;
  const Real nan = static_cast<Real>(__builtin_nan(""));
  for (int x = 0; x < rows; ++x)
    for (int y = 0; p.broken[x] && y < keys.length; ++y)
      if (visible(a, b, p.n, p.queries.begin + x, keys.begin + y)) {
        for (int c = 0; c < width; ++c) key_gradient[(keys.begin + y) * key_row + c] = nan;
        for (int c = 0; c < value_width; ++c) value_gradient[(keys.begin + y) * value_row + c] = nan;
      }
}

// Every `parts`-th panel of the heads that share one key head, from the `part`-th on: adds what they give to the
// gradients of keys and values (S rows of row_width(H) and row_width(V) numbers), and writes those of the queries.
template <class Stored, class Scores>
void backward_part(const Attention& a, const Backward& pass, const uint8_t* finite, int64_t b, int64_t group,
                   int64_t part, int64_t parts, typename Compute<Stored>::Type* key_gradient,
                   typename Compute<Stored>::Type* value_gradient, char* memory) {
  typedef typename Compute<Stored>::Type Real;
  const auto s = BackwardScratch<Real>::in(memory, a);
  Scores scores(a, b, group, memory + BackwardScratch<Real>::bytes(a));
  const int64_t members = a.heads / a.groups, length = least(kQueries, a.queries);
  const int64_t panels = length ? (a.queries + length - 1) / length : 0, blocks = (a.keys + kKeys - 1) / kKeys;
  const int width = static_cast<int>(a.width), value_width = static_cast<int>(a.value_width);
  const auto head_of = [=](int64_t piece) { return group * members + piece / panels; };
  const auto queries_of = [=](int64_t piece) {
    const int64_t begin = piece % panels * length;
    return Span{begin, static_cast<int>(least(length, a.queries - begin))};
  };
  for (int64_t piece = part; piece < members * panels; piece += parts * kPanelsTogether) {
    int together = 0;
    int64_t lo = a.keys, hi = 0;
    for (int64_t at = piece; at < members * panels && together < kPanelsTogether; at += parts, ++together) {
      if (const int64_t next = at + parts; next < members * panels) {
        fetch_ahead<Stored, false>(a.query, b, head_of(next), queries_of(next), width);
        fetch_ahead<Stored, false>(pass.output_gradient, b, head_of(next), queries_of(next), value_width);
        fetch_ahead<Stored, false>(pass.output, b, head_of(next), queries_of(next), value_width);
      }
      QueryPanel<Real>& p = s.panels[together];
      prepare_panel<Stored>(a, pass, b, head_of(at), queries_of(at), p);
      if (p.lo < p.hi) lo = least(lo, p.lo), hi = most(hi, p.hi);
    }
    for (int64_t block = lo / kKeys; block * kKeys < hi; ++block) {
      const Span whole = block_keys(block, 0, a.keys);
      const bool guarded = a.rules > 0 && !finite[(b * a.groups + group) * blocks + block];
      const auto key = key_block<Stored, Real>(a.key, b, group, whole, width, guarded, s.key_copy);
      const auto value = key_block<Stored, Real>(a.value, b, group, whole, value_width, guarded, s.value_copy);
      for (int i = 0; i < together; ++i) {
        const QueryPanel<Real>& p = s.panels[i];
        const Span keys = block_keys(block, p.lo, p.hi);
        if (keys.length <= 0) continue;
        const ptrdiff_t skipped = keys.begin - whole.begin;
        panel_against_keys<Real>(a, s, scores, p, b, keys, {key.data + skipped * key.row, key.row, 1},
                                 {value.data + skipped * value.row, value.row, 1}, guarded, key_gradient,
                                 value_gradient);
      }
    }
    for (int i = 0; i < together; ++i) {
      const QueryPanel<Real>& p = s.panels[i];
      if (i + 1 < together)
        fetch_ahead<Stored, true>(pass.query_gradient, b, s.panels[i + 1].n, s.panels[i + 1].queries, width);
      Real factors[kQueries] = {};
      for (int x = 0; x < p.queries.length; ++x)
        factors[x] = p.broken[x] ? static_cast<Real>(__builtin_nan("")) : static_cast<Real>(a.scale);
      store_transposed<Stored>(p.query_gradient, factors, pass.query_gradient, b, p.n, p.queries, width);
    }
  }
}

}  // namespace HEED_ISA
}  // namespace heed
