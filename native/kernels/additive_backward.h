// Additive attention, backward: one panel of queries against the keys that it may see.
//
// Scores are computed once more. All gradients but that of the panel itself are summed in scratch of the compute type
// that one task owns, so no order of threads can change a result.
#pragma once

#include "additive_pass.h"
#include "backward.h"

namespace heed {
namespace HEED_ISA {

// What comes in for the queries of a panel. Rows without keys, and rows that hold or see something which is not finite,
// add nothing: their weights become 0. The latter are written as NaN where they reach.
template <class Stored>
struct Incoming {
  typedef typename Compute<Stored>::Type Real;

  Real *gradient, *gradient_rows;  // of the output, transposed and as it is
  int row_width;
  // A weight is e^(score - base) / sum. From its gradient, `mean` is taken and `from_lse` added to it: one
  // after the other, as an error of their difference would be the same for all keys and add up.
  Real base[kQueries], sum[kQueries], mean[kQueries], from_lse[kQueries];
  bool broken[kQueries] = {}, any_broken = false;

  Incoming(const Attention& a, const AdditiveBackward& pass, int64_t b, Span queries, const bool* broken_query,
           Pieces* pieces) {
    const int value_width = static_cast<int>(a.value_width);
    row_width = BackwardScratch<Real>::row_width(value_width);
    pieces->take(kQueries * value_width, &gradient);
    pieces->take(kQueries * row_width, &gradient_rows);
    if (!pieces->memory) return;
    const Rows &output = pass.attention.output, &output_gradient = pass.attention.output_gradient;
    load_transposed<Stored, Real>(output_gradient, b, 0, queries, value_width, Real(1), gradient);
    load_rows<Stored, Real>(output_gradient, b, 0, queries, value_width, Real(1), gradient_rows, row_width);
    const Real* lse_gradient = static_cast<const Real*>(pass.attention.lse_gradient);
    const Real *highest_of = static_cast<const Real*>(pass.attention.softmax),
               *sum_of = highest_of + a.batch * a.queries;
    for (int x = 0; x < kQueries; ++x) {
      base[x] = static_cast<Real>(__builtin_inf()), sum[x] = 1, mean[x] = from_lse[x] = 0;
      if (x >= queries.length) continue;
      const int64_t i = queries.begin + x, at = b * a.queries + i;
      const Real own_lse_gradient = lse_gradient ? lse_gradient[at] : Real(0);
      const bool seen = sum_of[at] != 0;
      if (seen && a.rules > 0)
        broken[x] = sum_of[at] != sum_of[at] || broken_query[x] || !is_finite(own_lse_gradient) ||
                    !row_is_finite<Stored>(output_gradient, b, i, 0, a.value_width);
      if (!seen || broken[x]) {
        any_broken |= broken[x];
        for (int c = 0; c < value_width; ++c) gradient[c * kQueries + x] = gradient_rows[x * row_width + c] = 0;
        continue;
      }
      base[x] = highest_of[at];
      sum[x] = sum_of[at];
      mean[x] = dot(row<Stored>(output, b, i, 0), row<Stored>(output_gradient, b, i, 0), value_width);
      from_lse[x] = own_lse_gradient;
    }
  }

  // scores become weights, and gradients those of the scores. `factors` of dropout, or null: weights times these.
  void apply(const Real* factors, int x, Real* score, Real* gradient) const {
    typedef Vector<Real> V;
    constexpr Real kLog2E = static_cast<Real>(1.4426950408889634074);
    const V weight = exp2((load<V>(score) - load<V>(base + x)) * kLog2E) / load<V>(sum + x);
    const V factor = factors ? load<V>(factors + x) : broadcast(Real(1));
    store(gradient, weight * ((load<V>(gradient) * factor - load<V>(mean + x)) + load<V>(from_lse + x)));
    store(score, weight * factor);
  }

 private:
  static Real dot(const Stored* a, const Stored* b, int width) {
    Vector<Real> total{};
    for (int c = 0; c < width; c += Lanes<Real>::kCount)
      total += load_some(a + c, width - c) * load_some(b + c, width - c);
    return sum_of_lanes<Real>(total);
  }
};

template <class Real>
struct AdditiveBackwardScratch {
  Real *gradients, *query_gradient, *column;

  AdditiveBackwardScratch(const Attention& a, Pieces* pieces) {
    pieces->take(kKeys * kQueries, &gradients);
    pieces->take(kQueries * units_stride<Real>(a.width), &query_gradient);
    pieces->take(kKeys * Lanes<Real>::kCount, &column);
  }
};

template <class Stored>
size_t additive_backward_bytes(const Additive& additive) {
  Pieces pieces{nullptr};
  AdditivePanel<Stored>(additive, nullptr, AdditivePart{}, &pieces);
  Incoming<Stored>(additive.attention, AdditiveBackward{}, 0, Span{0, 0}, nullptr, &pieces);
  AdditiveBackwardScratch<typename Compute<Stored>::Type>(additive.attention, &pieces);
  return pieces.bytes;
}

// Adds what one panel gives to `sums`, and writes the gradient of its queries there or, if the panel has all its keys
// to itself, where it belongs.
template <class Stored>
void additive_backward(const Additive& additive, const AdditiveBackward& pass, const uint8_t* finite,
                       const AdditivePart& part, const AdditiveSums& sums, char* scratch) {
  typedef typename Compute<Stored>::Type Real;
  typedef Vector<Real> V;
  constexpr int kCount = Lanes<Real>::kCount;
  const Real nan = static_cast<Real>(__builtin_nan(""));
  const Attention& a = additive.attention;
  Pieces pieces{scratch};
  AdditivePanel<Stored> panel(additive, finite, part, &pieces);
  const Incoming<Stored> incoming(a, pass, part.b, panel.queries, panel.broken_query, &pieces);
  const AdditiveBackwardScratch<Real> s(a, &pieces);
  const Span queries = panel.queries;
  const int units = panel.units, stride = units_stride<Real>(units), columns = panel.columns;
  const int value_width = static_cast<int>(a.value_width), value_row = incoming.row_width;
  Real *key_sums = static_cast<Real*>(sums.key), *value_sums = static_cast<Real*>(sums.value);
  for (int n = 0; n < queries.length * stride; ++n) s.query_gradient[n] = 0;
  Dropout dropout;
  if (a.dropout > 0) dropout.begin(a, part.b, 0, queries);

  for (int64_t block = panel.lo / kKeys; block * kKeys < panel.hi; ++block) {
    if (block % part.parts != part.part || !panel.score(block)) continue;
    const Span keys = panel.keys;
    product(panel.value(), keys.length, incoming.gradient, kQueries, s.gradients, kQueries, columns, value_width,
            false);
    for (int y = 0; y < keys.length; ++y) {
      Real factors[kQueries];
      if (a.dropout > 0) dropout.factors(keys.begin + y, columns, static_cast<Real>(1 / (1 - a.dropout)), factors);
      for (int x = 0; x < columns; x += kCount)
        incoming.apply(a.dropout > 0 ? factors : nullptr, x, panel.scores + y * kQueries + x,
                       s.gradients + y * kQueries + x);
    }
    product(Strided<Real>{panel.scores, kQueries, 1}, keys.length, incoming.gradient_rows, value_row,
            value_sums + keys.begin * value_row, value_row, value_row, queries.length, true);
    if (keys.length % 2)
      for (int x = 0; x < columns; ++x) s.gradients[keys.length * kQueries + x] = 0;
    panel.with_range([&](auto constant) {
      additive_gradients<decltype(constant)::value>(
          panel.query_rows(), queries.length, panel.key, keys.length, panel.vector, units, s.gradients,
          s.query_gradient, key_sums + keys.begin * stride, static_cast<Real*>(sums.vector), s.column);
    });
    if (!incoming.any_broken) continue;
    for (int x = 0; x < queries.length; ++x)
      for (int y = 0; incoming.broken[x] && y < keys.length; ++y)
        if (visible(a, part.b, 0, queries.begin + x, keys.begin + y)) {
          for (int u = 0; u < units; ++u) key_sums[(keys.begin + y) * stride + u] = nan;
          for (int c = 0; c < value_width; ++c) value_sums[(keys.begin + y) * value_row + c] = nan;
        }
  }

  for (int x = 0; x < queries.length; ++x)
    for (int u = 0; incoming.broken[x] && u < units; ++u) s.query_gradient[x * stride + u] = nan;
  Real* bias_sums = static_cast<Real*>(sums.bias);
  for (int u = 0; u < units; u += kCount) {
    V total{};
    for (int x = 0; x < queries.length; ++x) total += load<V>(s.query_gradient + x * stride + u);
    store(bias_sums + u, load<V>(bias_sums + u) + total);
  }
  for (int x = 0; x < queries.length; ++x) {
    const Real* from = s.query_gradient + x * stride;
    for (int u = 0; u < units; u += kCount)
      if (sums.query)
        store(static_cast<Real*>(sums.query) + (queries.begin + x) * stride + u, load<V>(from + u));
      else
        store_some(row<Stored>(pass.attention.query_gradient, part.b, queries.begin + x, 0) + u, units - u,
                   load<V>(from + u));
  }
}

}  // namespace HEED_ISA
}  // namespace heed
