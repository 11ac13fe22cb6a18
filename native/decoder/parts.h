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

HEED_INLINE Vector<float> magnitude_of(Vector<float> x) { return x < 0 ? -x : x; }

// log(1 + e^x) without an overflow. natural_log wants 1 + e^-|x|, which is in [1, 2].
HEED_INLINE Vector<float> softplus(Vector<float> x) {
  return (x < 0 ? Vector<float>{} : x) + natural_log(1 + exponential(-magnitude_of(x)));
}

HEED_INLINE Vector<float> square_root(Vector<float> x) {
  for (int lane = 0; lane < kLanes<float>; ++lane) x[lane] = __builtin_sqrtf(x[lane]);
  return x;
}

// x between two bounds; what is not a number stays so.
HEED_INLINE Vector<float> clipped(Vector<float> x, float low, float high) {
  x = x < low ? broadcast(low) : x;
  return x > high ? broadcast(high) : x;
}

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
  if constexpr (kActivation == HEED_SOFTPLUS) return softplus(x);
  if constexpr (kActivation == HEED_CELU) return x < 0 ? exponential(x) - 1 : x;
  if constexpr (kActivation == HEED_SELU)
    return 1.0507009873554805f * (x < 0 ? 1.6732632423543773f * (exponential(x) - 1) : x);
  if constexpr (kActivation == HEED_SOFTSIGN) return x / (1 + magnitude_of(x));
  if constexpr (kActivation == HEED_SQUAREPLUS) return 0.5f * (x + square_root(x * x + 4));
  if constexpr (kActivation == HEED_EXPONENTIAL) return exponential(x);
  if constexpr (kActivation == HEED_MISH) return x * tanh<float>(softplus(x));
  if constexpr (kActivation == HEED_LOG_SIGMOID) return -softplus(-x);
  if constexpr (kActivation == HEED_TANH_SHRINK) return x - tanh<float>(x);
  if constexpr (kActivation == HEED_SOFT_SHRINK) return x > 0.5f ? x - 0.5f : x < -0.5f ? x + 0.5f : x - x;
  if constexpr (kActivation == HEED_HARD_SHRINK) return magnitude_of(x) > 0.5f ? x : x - x;
  if constexpr (kActivation == HEED_SPARSE_PLUS) {
    const V squared = 0.25f * (x + 1) * (x + 1);
    return x <= -1 ? V{} : x < 1 ? squared : x;
  }
  if constexpr (kActivation == HEED_SPARSE_SIGMOID) return clipped(0.5f * (x + 1), 0, 1);
  if constexpr (kActivation == HEED_HARD_SIGMOID) return clipped(x / 6 + 0.5f, 0, 1);
  if constexpr (kActivation == HEED_HARD_SILU) return x * clipped(x / 6 + 0.5f, 0, 1);
  if constexpr (kActivation == HEED_HARD_TANH) return clipped(x, -1, 1);
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
    HEED_ACTIVATION(HEED_RELU6)
    HEED_ACTIVATION(HEED_LEAKY_RELU)
    HEED_ACTIVATION(HEED_ELU)
    HEED_ACTIVATION(HEED_SOFTPLUS)
    HEED_ACTIVATION(HEED_CELU)
    HEED_ACTIVATION(HEED_SELU)
    HEED_ACTIVATION(HEED_SOFTSIGN)
    HEED_ACTIVATION(HEED_SQUAREPLUS)
    HEED_ACTIVATION(HEED_EXPONENTIAL)
    HEED_ACTIVATION(HEED_MISH)
    HEED_ACTIVATION(HEED_LOG_SIGMOID)
    HEED_ACTIVATION(HEED_TANH_SHRINK)
    HEED_ACTIVATION(HEED_SOFT_SHRINK)
    HEED_ACTIVATION(HEED_HARD_SHRINK)
    HEED_ACTIVATION(HEED_SPARSE_PLUS)
    HEED_ACTIVATION(HEED_SPARSE_SIGMOID)
    HEED_ACTIVATION(HEED_HARD_SIGMOID)
    HEED_ACTIVATION(HEED_HARD_SILU)
    HEED_ACTIVATION(HEED_HARD_TANH)
#undef HEED_ACTIVATION
    default: return use([](Vector<float> v) { return v; });
  }
}

// y = activation(x W + b); of a gated part the activated half of it times the other half.
inline void apply_activated_dense(const PackedDense& weights, Matrix x, int rows, Matrix y, int activation,
                                  bool gated) {
  if (!gated) return with_activation(activation, [&](auto function) { apply_dense(weights, x, rows, y, function); });
  apply_dense(weights, x, rows, y);
  const int half = weights.outputs / 2;
  with_activation(activation, [&](auto function) {
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < half; c += kLanes<float>) {
        float* at = y[r] + c;
        // The last vector may reach into the other half, which has been read there by then.
        store(at, keep_lanes(function(load(at)) * load_some(at + half, half - c), half - c));
      }
  });
}

}  // namespace HEED_ISA
}  // namespace heed
