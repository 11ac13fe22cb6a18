// What stands between the products of a layer: normalisation, activations.
#pragma once

#include "dense.h"

namespace heed {
namespace HEED_ISA {

// A vector of numbers, 0 from lane `count` on.
HEED_INLINE Vector<float> first_lanes(Vector<float> x, int count) {
  if (count < kLanes<float>)
    for (int lane = count; lane < kLanes<float>; ++lane) x[lane] = 0;
  return x;
}

// to = (x - mean) / sqrt(variance + epsilon) * gamma + beta; the same row may be both. Rows hold 0 up to the next full
// vector, and so does the result.
inline void normalise(const PackedNorm& norm, const float* x, int width, float* to) {
  Vector<float> total{}, squares{};
  for (int c = 0; c < width; c += kLanes<float>) total += load(x + c);
  const float mean = sum_of_lanes<float>(total) / static_cast<float>(width);
  for (int c = 0; c < width; c += kLanes<float>) {
    const Vector<float> rest = first_lanes(load(x + c) - mean, width - c);
    squares += rest * rest;
  }
  const float variance = sum_of_lanes<float>(squares) / static_cast<float>(width);
  const float factor = 1 / __builtin_sqrtf(variance + norm.epsilon);
  for (int c = 0; c < width; c += kLanes<float>)
    store(to + c, first_lanes((load(x + c) - mean) * factor * load(norm.gamma + c) + load(norm.beta + c), width - c));
}

HEED_INLINE Vector<float> exponential(Vector<float> x) { return exp2(x * kLog2E<float>); }

// Abramowitz and Stegun 7.1.26: within 1.5e-7 of erf(x).
HEED_INLINE Vector<float> erf(Vector<float> x) {
  typedef Vector<float> V;
  const V magnitude = x < 0 ? -x : x, t = 1 / (1 + 0.3275911f * magnitude);
  const V p = polynomial(t, 1.061405429f, -1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f, 0.0f);
  const V y = 1 - p * exponential(-magnitude * magnitude);
  return x < 0 ? -y : y;
}

HEED_INLINE Vector<float> sigmoid(Vector<float> x) { return 1 / (1 + exponential(-x)); }

template <int kActivation>
HEED_INLINE Vector<float> activated(Vector<float> x) {
  typedef Vector<float> V;
  if constexpr (kActivation == HEED_RELU) return x < 0 ? V{} : x;
  if constexpr (kActivation == HEED_GELU) return 0.5f * x * (1 + erf(x * 0.70710678118654752f));
  if constexpr (kActivation == HEED_SILU) return x * sigmoid(x);
  if constexpr (kActivation == HEED_SIGMOID) return sigmoid(x);
  if constexpr (kActivation == HEED_TANH) return tanh<float>(x);
  if constexpr (kActivation == HEED_RELU6) return x < 0 ? V{} : x > 6 ? V{} + 6.0f : x;
  if constexpr (kActivation == HEED_LEAKY_RELU) return x < 0 ? 0.2f * x : x;
  if constexpr (kActivation == HEED_ELU) return x < 0 ? exponential(x) - 1 : x;
  if constexpr (kActivation == HEED_SOFTPLUS) {
    // log(1 + e^x) without an overflow. natural_log wants 1 + e^-|x|, which is in [1, 2].
    const V magnitude = x < 0 ? -x : x;
    return (x < 0 ? V{} : x) + natural_log(1 + exponential(-magnitude));
  }
  return x;
}

// y = activation(x W + b).
inline void dense_activated(const PackedDense& weights, Rows x, int rows, Rows y, int activation) {
  switch (activation) {
#define HEED_ACTIVATION(name) \
  case name: return dense(weights, x, rows, y, [](Vector<float> v) { return activated<name>(v); });
    HEED_ACTIVATION(HEED_RELU)
    HEED_ACTIVATION(HEED_GELU)
    HEED_ACTIVATION(HEED_SILU)
    HEED_ACTIVATION(HEED_SIGMOID)
    HEED_ACTIVATION(HEED_TANH)
    HEED_ACTIVATION(HEED_RELU6)
    HEED_ACTIVATION(HEED_LEAKY_RELU)
    HEED_ACTIVATION(HEED_ELU)
    HEED_ACTIVATION(HEED_SOFTPLUS)
#undef HEED_ACTIVATION
    default: return dense(weights, x, rows, y);
  }
}

}  // namespace HEED_ISA
}  // namespace heed
