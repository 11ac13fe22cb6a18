// Backward: the queries of some heads that share one key head, panel by panel, against the keys they see.
//
// Scores are computed once more from the log-sum-exp. Gradients of keys and values are summed in scratch of the compute
// type that one task owns, so no order of threads can change a result.
#pragma once

#include "forward.h"

namespace heed {
namespace HEED_ISA {

template <class Real>
struct BackwardScratch {
  Real *query, *query_rows, *output_gradient, *output_gradient_rows, *query_gradient;
  Real *weights, *weight_gradients, *slope, *factors;
  typename Lanes<Real>::Integer* hidden;
  Real *key_copy, *value_copy;

  static int row_width(int64_t width) { return round_up(width, Lanes<Real>::kCount); }
  static size_t bytes(const Attention& a) {
    const size_t h = static_cast<size_t>(row_width(a.width)), v = static_cast<size_t>(row_width(a.value_width));
    return sizeof(Real) * (kQueries * (3 * h + 2 * v + 5 * kKeys) + kKeys * (h + v)) + 64;
  }
  static BackwardScratch in(char* memory, const Attention& a) {
    const int h = row_width(a.width), v = row_width(a.value_width);
    BackwardScratch s;
    Real* at = reinterpret_cast<Real*>(memory);
    auto take = [&at](int numbers) {
      Real* here = at;
      at += numbers;
      return here;
    };
    s.query = take(kQueries * h);
    s.query_rows = take(kQueries * h);
    s.query_gradient = take(kQueries * h);
    s.output_gradient = take(kQueries * v);
    s.output_gradient_rows = take(kQueries * v);
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

// Adds what one panel gives to the gradients of keys and values (S rows of row_width(H) and row_width(V) numbers), and
// writes the gradient of its queries.
template <class Stored>
void backward_panel(const Attention& a, const Backward& pass, const uint8_t* finite, int64_t b, int64_t n,
                    int64_t panel, int panel_length, typename Compute<Stored>::Type* key_gradient,
                    typename Compute<Stored>::Type* value_gradient, char* memory) {
  typedef typename Compute<Stored>::Type Real;
  typedef Vector<Real> V;
  constexpr int kCount = Lanes<Real>::kCount;
  constexpr Real kLog2E = static_cast<Real>(1.4426950408889634074);
  const Real infinity = static_cast<Real>(__builtin_inf()), nan = static_cast<Real>(__builtin_nan(""));
  const auto s = BackwardScratch<Real>::in(memory, a);
  const Span queries{panel * panel_length, static_cast<int>(least(panel_length, a.queries - panel * panel_length))};
  const int columns = round_up(queries.length, kCount);
  const int64_t group = n / (a.heads / a.groups), blocks = (a.keys + kKeys - 1) / kKeys;
  const int width = static_cast<int>(a.width), value_width = static_cast<int>(a.value_width);
  const int key_row = BackwardScratch<Real>::row_width(a.width);
  const int value_row = BackwardScratch<Real>::row_width(a.value_width);
  const Real scale = static_cast<Real>(a.scale);

  load_transposed<Stored, Real>(a.query, b, n, queries, width, scale, s.query);
  load_rows<Stored, Real>(a.query, b, n, queries, width, scale, s.query_rows, key_row);
  load_transposed<Stored, Real>(pass.output_gradient, b, n, queries, value_width, Real(1), s.output_gradient);
  load_rows<Stored, Real>(pass.output_gradient, b, n, queries, value_width, Real(1), s.output_gradient_rows, value_row);
  for (int c = 0; c < width * kQueries; ++c) s.query_gradient[c] = 0;

  // Rows without keys, and rows that hold or see something which is not finite, add nothing: their log-sum-exp becomes
  // infinite and their weights 0. The latter are written as NaN where they reach.
  Real lse[kQueries], delta[kQueries];
  bool broken[kQueries] = {}, any_broken = false;
  const int64_t first = (b * a.heads + n) * a.queries + queries.begin;
  for (int x = 0; x < kQueries; ++x) {
    lse[x] = infinity, delta[x] = 0;
    if (x >= queries.length) continue;
    const int64_t i = queries.begin + x;
    const Real own = static_cast<const Real*>(pass.lse)[first + x];
    const Real from_lse = pass.lse_gradient ? static_cast<const Real*>(pass.lse_gradient)[first + x] : Real(0);
    const bool seen = own != -infinity;
    if (seen && a.rules > 0)
      broken[x] = own != own || !is_finite(from_lse) || !row_is_finite<Stored>(a.query, b, i, n, a.width) ||
                  !row_is_finite<Stored>(pass.output_gradient, b, i, n, a.value_width);
    if (!seen || broken[x]) {
      any_broken |= broken[x];
      for (int c = 0; c < width; ++c) s.query[c * kQueries + x] = s.query_rows[x * key_row + c] = 0;
      for (int c = 0; c < value_width; ++c)
        s.output_gradient[c * kQueries + x] = s.output_gradient_rows[x * value_row + c] = 0;
      continue;
    }
    const Stored* output = row<Stored>(pass.output, b, i, n);
    const Stored* gradient = row<Stored>(pass.output_gradient, b, i, n);
    V total{};
    for (int c = 0; c < value_width; c += kCount)
      total += load_some(output + c, value_width - c) * load_some(gradient + c, value_width - c);
    lse[x] = own;
    delta[x] = sum_of_lanes<Real>(total) - from_lse;
  }
  Dropout dropout;
  if (a.dropout > 0) dropout.begin(a, b, n, queries);

  int64_t lo, hi;
  key_range(a, b, queries, &lo, &hi);
  for (int64_t block = lo / kKeys; block * kKeys < hi; ++block) {
    const Span keys = block_keys(block, lo, hi);
    const Sight sight = look<Real>(a, b, n, queries, keys, columns, s.hidden);
    if (sight == Sight::kNone) continue;
    const bool guarded = a.rules > 0 && !finite[(b * a.groups + group) * blocks + block];
    const auto key = key_block<Stored, Real>(a.key, b, group, keys, width, guarded, s.key_copy);
    const auto value = key_block<Stored, Real>(a.value, b, group, keys, value_width, guarded, s.value_copy);

    product(key, keys.length, s.query, kQueries, s.weights, kQueries, columns, width, false);
    finish_scores<Real>(a, b, n, queries, keys, columns, sight, s.hidden, s.weights, s.slope);
    product(value, keys.length, s.output_gradient, kQueries, s.weight_gradients, kQueries, columns, value_width, false);
    if (a.dropout > 0)
      for (int y = 0; y < keys.length; ++y) {
        Real* factors = s.factors + y * kQueries;
        dropout.factors(keys.begin + y, columns, static_cast<Real>(1 / (1 - a.dropout)), factors);
        for (int x = 0; x < columns; ++x) s.weight_gradients[y * kQueries + x] *= factors[x];
      }
    // weights become the (dropped) weights, weight_gradients the gradients of the scores.
    for (int y = 0; y < keys.length; ++y)
      for (int x = 0; x < columns; x += kCount) {
        Real *weights = s.weights + y * kQueries + x, *gradients = s.weight_gradients + y * kQueries + x;
        const V weight = exp2((load<V>(weights) - load<V>(lse + x)) * kLog2E);
        V gradient = weight * (load<V>(gradients) - load<V>(delta + x));
        if (a.soft_cap > 0) gradient *= load<V>(s.slope + y * kQueries + x);
        store(gradients, gradient);
        store(weights, a.dropout > 0 ? weight * load<V>(s.factors + y * kQueries + x) : weight);
      }
    product(flipped(key), width, s.weight_gradients, kQueries, s.query_gradient, kQueries, columns, keys.length, true);
    const int rows = queries.length;
    product(Strided<Real>{s.weights, kQueries, 1}, keys.length, s.output_gradient_rows, value_row,
            value_gradient + keys.begin * value_row, value_row, value_row, rows, true);
    product(Strided<Real>{s.weight_gradients, kQueries, 1}, keys.length, s.query_rows, key_row,
            key_gradient + keys.begin * key_row, key_row, key_row, rows, true);
    if (any_broken)
      for (int x = 0; x < queries.length; ++x)
        for (int y = 0; broken[x] && y < keys.length; ++y)
          if (visible(a, b, n, queries.begin + x, keys.begin + y)) {
            for (int c = 0; c < width; ++c) key_gradient[(keys.begin + y) * key_row + c] = nan;
            for (int c = 0; c < value_width; ++c) value_gradient[(keys.begin + y) * value_row + c] = nan;
          }
  }
  Real factors[kQueries] = {};
  for (int x = 0; x < queries.length; ++x) factors[x] = broken[x] ? nan : scale;
  store_transposed<Stored>(s.query_gradient, factors, pass.query_gradient, b, n, queries, width);
}

}  // namespace HEED_ISA
}  // namespace heed
