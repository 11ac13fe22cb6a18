// Softmax cross-entropy, row by row. A row of logits is read twice in the forward pass, the second time from the cache,
// and once in the backward pass, where the gradient may take its place. Probabilities are never kept.
#pragma once

#include "rows.h"

namespace heed {
namespace HEED_ISA {

// exp(x - largest), for x up to that.
template <class Real>
HEED_INLINE Vector<Real> exp_below(Vector<Real> x, Real largest) {
  return exp2((x - largest) * kLog2E<Real>);
}

template <class Stored>
void cross_entropy(const HeedCrossEntropy& c, void* losses, void* softmax, int64_t begin, int64_t end) {
  typedef typename Compute<Stored>::Type Real;
  typedef Vector<Real> V;
  const int64_t width = c.rows.width;
  const Real smoothing = static_cast<Real>(c.smoothing);
  for (int64_t r = begin; r < end; ++r) {
    const Stored* logits = static_cast<const Stored*>(c.logits) + r * width;
    Real *loss = static_cast<Real*>(losses) + r, *largest = static_cast<Real*>(softmax) + r;
    Real* sum = largest + c.rows.count;
    if (c.labels[r] == c.ignored) {
      *loss = *largest = *sum = 0;
      continue;
    }
    V most = broadcast(-kInfinity<Real>);
    for_each_vector<Real>(0, width, [&](int64_t column, int count) {
      most = larger(fill_rest<Real>(load_some(logits + column, count), count, -kInfinity<Real>), most);
    });
    *largest = -kInfinity<Real>;
    for (int lane = 0; lane < kLanes<Real>; ++lane) *largest = most[lane] > *largest ? most[lane] : *largest;
    const Real top = *largest;
    *sum = sum_of_lanes<Real>(sum_vectors<Real>(
        width, [&](int64_t column, int count) { return exp_below<Real>(load_some(logits + column, count), top); }));
    // All relative to the largest logit, so that large logits lose no digits.
    *loss = natural_log(*sum) + (1 - smoothing) * (top - load_some(logits + c.labels[r], 1)[0]);
    if (smoothing > 0) {
      const V below =
          sum_vectors<Real>(width, [&](int64_t column, int count) { return top - load_some(logits + column, count); });
      *loss += smoothing / static_cast<Real>(width) * sum_of_lanes<Real>(below);
    }
  }
}

template <class Stored>
void cross_entropy_gradient(const HeedCrossEntropy& c, const void* softmax, const void* losses_gradient,
                            void* logits_gradient, int64_t begin, int64_t end) {
  typedef typename Compute<Stored>::Type Real;
  typedef Vector<Real> V;
  const int64_t width = c.rows.width;
  const Real smoothing = static_cast<Real>(c.smoothing);
  for (int64_t r = begin; r < end; ++r) {
    const Stored* logits = static_cast<const Stored*>(c.logits) + r * width;
    Stored* gradient = static_cast<Stored*>(logits_gradient) + r * width;
    const int32_t label = c.labels[r];
    if (label == c.ignored) {
      __builtin_memset(gradient, 0, static_cast<size_t>(width) * sizeof(Stored));
      continue;
    }
    const Real* const row = static_cast<const Real*>(softmax) + r;
    const Real incoming = static_cast<const Real*>(losses_gradient)[r], top = row[0];
    const Real factor = incoming / row[c.rows.count], share = incoming * smoothing / static_cast<Real>(width);
    auto gradient_of = [&](V x) { return exp_below<Real>(x, top) * factor - share; };
    // Computed before the gradient takes the place of the logits.
    const V of_label = gradient_of(load_some(logits + label, 1)) - incoming * (1 - smoothing);
    for_each_vector<Real>(0, width, [&](int64_t column, int count) {
      store_some(gradient + column, count, gradient_of(load_some(logits + column, count)));
    });
    store_some(gradient + label, 1, of_label);
  }
}

}  // namespace HEED_ISA
}  // namespace heed
