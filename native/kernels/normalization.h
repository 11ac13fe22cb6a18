// Layer and RMS normalisation, row by row. The gradients of scale and offset are summed over a part of the rows each.
#pragma once

#include "rows.h"

namespace heed {
namespace HEED_ISA {

HEED_INLINE float square_root(float x) { return __builtin_sqrtf(x); }
HEED_INLINE double square_root(double x) { return __builtin_sqrt(x); }

// Loads from a vector (D,), or `otherwise` if it is null.
template <class Real>
HEED_INLINE Vector<Real> load_or(const void* vector, int64_t column, int count, Real otherwise) {
  return vector ? load_some(static_cast<const Real*>(vector) + column, count) : broadcast(otherwise);
}

template <class Stored>
void normalization(const HeedNormalization& n, void* y, void* moments, int64_t begin, int64_t end) {
  typedef typename Compute<Stored>::Type Real;
  typedef Vector<Real> V;
  const int64_t width = n.rows.width;
  const Real count_of_all = static_cast<Real>(width);
  for (int64_t r = begin; r < end; ++r) {
    const Stored* x = static_cast<const Stored*>(n.x) + r * width;
    Stored* to = static_cast<Stored*>(y) + r * width;
    Real mean = 0;
    if (!n.rms)
      mean = sum_of_lanes<Real>(
                 sum_vectors<Real>(width, [&](int64_t column, int count) { return load_some(x + column, count); })) /
             count_of_all;
    // Of the differences: subtracting the square of the mean would lose all digits where the mean is large.
    const V squares = sum_vectors<Real>(width, [&](int64_t column, int count) {
      const V difference = load_some(x + column, count) - mean;
      return difference * difference;
    });
    const Real variance = sum_of_lanes<Real>(squares) / count_of_all;
    const Real inverse = 1 / square_root(variance + static_cast<Real>(n.epsilon));
    for_each_vector<Real>(0, width, [&](int64_t column, int count) {
      const V normal = (load_some(x + column, count) - mean) * inverse;
      store_some(to + column, count,
                 normal * load_or<Real>(n.scale, column, count, 1) + load_or<Real>(n.offset, column, count, 0));
    });
    static_cast<Real*>(moments)[r] = mean;
    static_cast<Real*>(moments)[n.rows.count + r] = inverse;
  }
}

// With the normal number h = (x - mean) * inverse and g = y_gradient * scale:
//   x_gradient = inverse * (g - mean(g) - h * mean(g * h)), of RMS without mean(g)
// Adds y_gradient * h to `sums`, the gradient of the scale, and y_gradient to that of the offset, `distance` numbers
// on; unless null.
template <class Stored>
void normalization_gradient(const HeedNormalization& n, const void* moments, const void* y_gradient, void* x_gradient,
                            void* sums, int64_t distance, int64_t begin, int64_t end) {
  typedef typename Compute<Stored>::Type Real;
  typedef Vector<Real> V;
  const int64_t width = n.rows.width;
  Real *scale_sums = static_cast<Real*>(sums), *offset_sums = sums ? scale_sums + distance : nullptr;
  for (int64_t r = begin; r < end; ++r) {
    const Stored* x = static_cast<const Stored*>(n.x) + r * width;
    const Stored* incoming = static_cast<const Stored*>(y_gradient) + r * width;
    Stored* to = static_cast<Stored*>(x_gradient) + r * width;
    const Real mean = static_cast<const Real*>(moments)[r];
    const Real inverse = static_cast<const Real*>(moments)[n.rows.count + r];
    auto normal = [&](int64_t column, int count) { return (load_some(x + column, count) - mean) * inverse; };
    auto scaled = [&](int64_t column, int count) {
      return load_some(incoming + column, count) * load_or<Real>(n.scale, column, count, 1);
    };
    const V products = sum_vectors<Real>(
        width, [&](int64_t column, int count) { return scaled(column, count) * normal(column, count); });
    const Real of_product = sum_of_lanes<Real>(products) / static_cast<Real>(width);
    Real of_gradient = 0;
    if (!n.rms) of_gradient = sum_of_lanes<Real>(sum_vectors<Real>(width, scaled)) / static_cast<Real>(width);
    for_each_vector<Real>(0, width, [&](int64_t column, int count) {
      const V h = normal(column, count), g = load_some(incoming + column, count);
      if (sums) {
        store(scale_sums + column, load(scale_sums + column) + g * h);
        store(offset_sums + column, load(offset_sums + column) + g);
      }
      store_some(to + column, count, (scaled(column, count) - of_gradient - h * of_product) * inverse);
    });
  }
}

}  // namespace HEED_ISA
}  // namespace heed
