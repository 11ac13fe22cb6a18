// Additive attention, backward: one query tile against the keys that it may see.
//
// Scores that were not kept are computed once more. All gradients but that of the tile itself are summed in scratch of
// the compute type that one task owns, so the order of threads changes no result.
#pragma once

#include "additive_forward.h"
#include "backward.h"

namespace heed {
namespace HEED_ISA {

// The incoming gradients of a query tile. Rows without keys, and rows that hold or see non-finite numbers, add nothing:
// their weights are 0. The gradients that the latter reach are set to NaN.
template <class Stored>
struct Incoming {
  typedef typename Compute<Stored>::Type Real;

  Real *gradient, *gradient_rows;  // of the output, transposed and in rows
  int row_width;
  // A weight is e^(score - row_max) / row_sum. `mean` is subtracted from its gradient, then `from_lse` is added: an
  // error of their difference would be the same for all keys and add up.
  Real row_max[kQueryTile], row_sum[kQueryTile], mean[kQueryTile], from_lse[kQueryTile];
  bool nonfinite[kQueryTile] = {}, any_nonfinite = false;

  Incoming(const HeedAttention& a, Arena& arena)
      : gradient(arena.take<Real>(kQueryTile * a.value_dim)),
        gradient_rows(arena.take<Real>(kQueryTile * gradient_row<Real>(a.value_dim))),
        row_width(gradient_row<Real>(a.value_dim)) {}

  void begin(const HeedAttention& a, const HeedBackward& pass, int64_t b, Span queries, const bool* nonfinite_query) {
    const int value_dim = static_cast<int>(a.value_dim);
    const HeedTensor &output = pass.output, &output_gradient = pass.output_gradient;
    load_transposed<Stored, Real>(output_gradient, b, 0, queries, value_dim, Real(1), gradient);
    load_rows<Stored, Real>(output_gradient, b, 0, queries, value_dim, Real(1), gradient_rows, row_width);
    const Real* lse_gradient = static_cast<const Real*>(pass.lse_gradient);
    const Real *row_max_of = static_cast<const Real*>(pass.softmax),
               *row_sum_of = row_max_of + a.batch * a.query_length;
    for (int x = 0; x < kQueryTile; ++x) {
      row_max[x] = kInfinity<Real>, row_sum[x] = 1, mean[x] = from_lse[x] = 0;
      if (x >= queries.length) continue;
      const int64_t i = queries.begin + x, at = b * a.query_length + i;
      const Real own_lse_gradient = lse_gradient ? lse_gradient[at] : Real(0);
      const bool seen = row_sum_of[at] != 0;
      if (seen && a.rule_count > 0)
        nonfinite[x] = row_sum_of[at] != row_sum_of[at] || nonfinite_query[x] || !is_finite(own_lse_gradient) ||
                       !row_is_finite<Stored>(output_gradient, b, i, 0, a.value_dim);
      if (!seen || nonfinite[x]) {
        any_nonfinite |= nonfinite[x];
        for (int c = 0; c < value_dim; ++c) gradient[c * kQueryTile + x] = gradient_rows[x * row_width + c] = 0;
        continue;
      }
      row_max[x] = row_max_of[at];
      row_sum[x] = row_sum_of[at];
      mean[x] = row_dot(row<Stored>(output, b, i, 0), row<Stored>(output_gradient, b, i, 0), value_dim);
      from_lse[x] = own_lse_gradient;
    }
  }

  // Turns scores into weights, and gradients of the weights into those of the scores. `factors`: of dropout, or null.
  void apply(const Real* factors, int x, Real* score, Real* gradient) const {
    const Vector<Real> weight = exp2((load(score) - load(row_max + x)) * kLog2E<Real>) / load(row_sum + x);
    const Vector<Real> factor = factors ? load(factors + x) : broadcast(Real(1));
    store(gradient, weight * ((load(gradient) * factor - load(mean + x)) + load(from_lse + x)));
    store(score, weight * factor);
  }
};

template <class Stored>
struct AdditiveBackwardScratch {
  typedef typename Compute<Stored>::Type Real;
  AdditiveTile<Stored> tile;
  Incoming<Stored> incoming;
  Real *gradients, *query_gradient, *column;

  AdditiveBackwardScratch(const HeedAttention& a, Arena& arena)
      : tile(a, arena),
        incoming(a, arena),
        gradients(arena.take<Real>(kKeyBlock * kQueryTile)),
        query_gradient(arena.take<Real>(kQueryTile * tile.stride)),
        column(arena.take<Real>(kKeyBlock * kLanes<Real>)) {}
};

// Adds the gradients of one tile to `sums`. The gradient of its queries is written there too if its keys are split,
// else to `pass`.
template <class Stored>
void additive_backward(const HeedAttention& a, const HeedBackward& pass, const uint8_t* finite,
                       const AdditivePart& part, const AdditiveSums& sums, char* scratch) {
  typedef typename Compute<Stored>::Type Real;
  Arena arena(scratch);
  AdditiveBackwardScratch<Stored> s(a, arena);
  AdditiveTile<Stored>& tile = s.tile;
  Incoming<Stored>& incoming = s.incoming;
  tile.begin(finite, part);
  incoming.begin(a, pass, part.b, tile.queries, tile.nonfinite_query);
  const Span queries = tile.queries;
  const int units = tile.units, stride = tile.stride, columns = tile.columns;
  const int value_dim = static_cast<int>(a.value_dim), value_row = incoming.row_width;
  Real *key_sums = static_cast<Real*>(sums.key), *value_sums = static_cast<Real*>(sums.value);
  for (int n = 0; n < queries.length * stride; ++n) s.query_gradient[n] = 0;
  Dropout dropout;
  if (a.dropout > 0) dropout.begin(a, part.b, 0, queries);

  for (int64_t at = tile.lo / kKeyBlock; at * kKeyBlock < tile.hi; ++at) {
    if (at % part.parts != part.part || !tile.load(at)) continue;
    if (keeps_scores(a))
      tile.recall(tile.kept(static_cast<const Real*>(pass.softmax)));
    else
      tile.score();
    const Span keys = tile.keys;
    product(tile.value(), keys.length, incoming.gradient, kQueryTile, s.gradients, kQueryTile, columns, value_dim,
            false);
    for (int y = 0; y < keys.length; ++y) {
      Real factors[kQueryTile];
      if (a.dropout > 0) dropout.factors(keys.begin + y, columns, factors);
      for (int x = 0; x < columns; x += kLanes<Real>)
        incoming.apply(a.dropout > 0 ? factors : nullptr, x, tile.scores + y * kQueryTile + x,
                       s.gradients + y * kQueryTile + x);
    }
    product(Strided<Real>{tile.scores, kQueryTile, 1}, keys.length, incoming.gradient_rows, value_row,
            value_sums + keys.begin * value_row, value_row, value_row, queries.length, true);
    if (keys.length % 2)
      for (int x = 0; x < columns; ++x) s.gradients[keys.length * kQueryTile + x] = 0;
    tile.with_range([&](auto constant) {
      additive_gradients<decltype(constant)::value>(
          tile.query_rows(), queries.length, tile.key, keys.length, tile.vector, units, s.gradients, s.query_gradient,
          key_sums + keys.begin * stride, static_cast<Real*>(sums.vector), s.column);
    });
    if (!incoming.any_nonfinite) continue;
    for (int x = 0; x < queries.length; ++x)
      for (int y = 0; incoming.nonfinite[x] && y < keys.length; ++y)
        if (sees(tile.mask, tile.hidden, y, x)) {
          for (int u = 0; u < units; ++u) key_sums[(keys.begin + y) * stride + u] = kNaN<Real>;
          for (int c = 0; c < value_dim; ++c) value_sums[(keys.begin + y) * value_row + c] = kNaN<Real>;
        }
  }

  for (int x = 0; x < queries.length; ++x)
    for (int u = 0; incoming.nonfinite[x] && u < units; ++u) s.query_gradient[x * stride + u] = kNaN<Real>;
  Real* bias_sums = static_cast<Real*>(sums.bias);
  for (int u = 0; u < units; u += kLanes<Real>) {
    Vector<Real> total{};
    for (int x = 0; x < queries.length; ++x) total += load(s.query_gradient + x * stride + u);
    store(bias_sums + u, load(bias_sums + u) + total);
  }
  for (int x = 0; x < queries.length; ++x) {
    const Real* from = s.query_gradient + x * stride;
    for (int u = 0; u < units; u += kLanes<Real>)
      if (sums.query)
        store(static_cast<Real*>(sums.query) + (queries.begin + x) * stride + u, load(from + u));
      else
        store_some(row<Stored>(pass.query_gradient, part.b, queries.begin + x, 0) + u, units - u, load(from + u));
  }
}

}  // namespace HEED_ISA
}  // namespace heed
