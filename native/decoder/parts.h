// The row-wise parts of a layer: normalisation and activations.
#pragma once

#include "dense.h"

namespace heed {
namespace HEED_ISA {

// Sets the lanes from `count` on to 0.
HEED_INLINE Vector<float> keep_lanes(Vector<float> x, int count) {
  if (count < kLanes<float>)
    for (int lane = count; lane < kLanes<float>; ++lane) x[lane] = 0;
  return x;
}

// to = (x - mean) / sqrt(variance + epsilon) * gamma + beta, with mean 0 for RMS normalisation. `to` may be `x`.
// write(to + c, count, numbers) stores them, a vector at a time.
template <class Write>
HEED_INLINE void normalise(const PackedNorm& norm, const float* x, int width, float* to, const Write& write) {
  Vector<float> total{}, squares{};
  for (int c = 0; c < width && !norm.root_mean_square; c += kLanes<float>) total += load_some(x + c, width - c);
  const float mean = sum_of_lanes<float>(total) / static_cast<float>(width);
  for (int c = 0; c < width; c += kLanes<float>) {
    const Vector<float> rest = keep_lanes(load_some(x + c, width - c) - mean, width - c);
    squares += rest * rest;
  }
  const float variance = sum_of_lanes<float>(squares) / static_cast<float>(width);
  const float factor = 1 / __builtin_sqrtf(variance + norm.epsilon);
  for (int c = 0; c < width; c += kLanes<float>)
    write(to + c, width - c,
          (load_some(x + c, width - c) - mean) * factor * load(norm.gamma + c) + load(norm.beta + c));
}

// A row, padded with 0 to full vectors.
inline void normalise(const PackedNorm& norm, const float* x, int width, float* to) {
  normalise(norm, x, width, to, [](float* at, int count, Vector<float> v) { store(at, keep_lanes(v, count)); });
}

// Normalises each of `count` adjacent heads; does nothing without a normalisation.
inline void normalise_heads(const PackedNorm& norm, float* heads, int count, int head_dim) {
  if (!norm.gamma) return;
  for (int n = 0; n < count; ++n, heads += head_dim)
    normalise(norm, heads, head_dim, heads, [](float* at, int left, Vector<float> v) { store_some(at, left, v); });
}

// For x < 89, where it is infinite.
HEED_INLINE Vector<float> exponential(Vector<float> x) { return exp2(x * kLog2E<float>); }

// Abramowitz and Stegun 7.1.26: within 1.5e-7 of erf(x).
HEED_INLINE Vector<float> erf(Vector<float> x) {
  typedef Vector<float> V;
  const V magnitude = x < 0 ? -x : x, t = 1 / (1 + 0.3275911f * magnitude);
  const V p = polynomial(t, 1.061405429f, -1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f, 0.0f);
  const V y = 1 - p * exponential(-magnitude * magnitude);
  return x < 0 ? -y : y;
}

HEED_INLINE Vector<float> sigmoid(Vector<float> x) { return 1 / (1 + exponential(x < -88.9f ? broadcast(88.9f) : -x)); }

template <int kActivation>
HEED_INLINE Vector<float> activated(Vector<float> x) {
  if constexpr (kActivation == HEED_RELU) return x < 0 ? Vector<float>{} : x;
  if constexpr (kActivation == HEED_GELU) return 0.5f * x * (1 + erf(x * 0.70710678118654752f));
  if constexpr (kActivation == HEED_SILU) return x * sigmoid(x);
  if constexpr (kActivation == HEED_SIGMOID) return sigmoid(x);
  if constexpr (kActivation == HEED_TANH) return tanh<float>(x);
  if constexpr (kActivation == HEED_QUICK_GELU) return x * sigmoid(1.702f * x);
  if constexpr (kActivation == HEED_GELU_TANH)
    return 0.5f * x * (1 + tanh<float>(0.79788456080286536f * (x + 0.044715f * x * x * x)));
  return x;
}

// use(function) with the activation of this number.
template <class Use>
inline void with_activation(int activation, const Use& use) {
  switch (activation) {
#define HEED_ACTIVATION(name) \
  case name: return use([](Vector<float> v) { return activated<name>(v); });
    HEED_ACTIVATION(HEED_RELU)
    HEED_ACTIVATION(HEED_GELU)
    HEED_ACTIVATION(HEED_SILU)
    HEED_ACTIVATION(HEED_SIGMOID)
    HEED_ACTIVATION(HEED_TANH)
    HEED_ACTIVATION(HEED_GELU_TANH)
    HEED_ACTIVATION(HEED_QUICK_GELU)
#undef HEED_ACTIVATION
    default: return use([](Vector<float> v) { return v; });
  }
}

// y = activation(x W + b); of a gated part the activated half of it times the other half.
inline void apply_activated_dense(Team* team, const PackedDense& weights, Matrix x, int rows, Matrix y,
                                  const PackedActivation& how, bool gated) {
  if (!gated)
    return with_activation(how.activation, [&](auto function) { apply_dense(team, weights, x, rows, y, function); });
  apply_dense(team, weights, x, rows, y);
  const int half = weights.outputs / 2;
  const float limit = how.limit, offset = how.up_offset;
  with_activation(how.activation, [&](auto function) {
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < half; c += kLanes<float>) {
        float* at = y[r] + c;
        // The last vector may reach into the other half, which has been read there by then.
        Vector<float> gate = load(at), up = load_some(at + half, half - c);
        if (limit > 0) {
          gate = gate > limit ? broadcast(limit) : gate;
          up = up > limit ? broadcast(limit) : up < -limit ? broadcast(-limit) : up;
        }
        store(at, keep_lanes(function(gate) * (up + offset), half - c));
      }
  });
}

}  // namespace HEED_ISA
}  // namespace heed
