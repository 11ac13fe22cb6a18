// float32 weights as they are, in panels.
#pragma once

#include "panels.h"

namespace heed {
namespace HEED_ISA {

inline constexpr int kLine = 64 / static_cast<int>(sizeof(float));  // numbers of a cache line

// Some rows of y (+)= x W for a full panel of float weights. Each row of weights prefetches kAhead cache lines of the
// next part, `step` after those of the row before: a row is used for less time than it takes to come from the
// third-level cache.
template <int kRows, int kAhead>
inline void panel_tile(Matrix x, const float* weights, int depth, Matrix y, bool accumulate, const float* ahead,
                       ptrdiff_t step) {
  typedef Vector<float> V;
  constexpr int kVectors = kPanel / kLanes<float>;
  V sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sum[r][v] = V{};
  for (int k = 0; k < depth; ++k, weights += kPanel, ahead += step) {
    V w[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) w[v] = load(weights + v * kLanes<float>);
#pragma GCC unroll 8
    for (int i = 0; i < kAhead; ++i) __builtin_prefetch(ahead + i * kLine);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const V s = broadcast(x[r][k]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sum[r][v] += s * w[v];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      float* to = y[r] + v * kLanes<float>;
      store(to, accumulate ? load(to) + sum[r][v] : sum[r][v]);
    }
}

// All rows for some of the inputs. The next part is at `next`: a panel, or rows of weights `stride` apart.
inline void panel_rows(Matrix x, int rows, const float* weights, int depth, Matrix y, bool accumulate,
                       const float* next, ptrdiff_t stride = 0) {
  constexpr int kLines = kPanel > kLine ? kPanel / kLine : 1;
  panel_tiles<kLines>(rows, [&](int first, auto count, auto lines, int done) {
    constexpr int kAhead = decltype(lines)::value;
    panel_tile<decltype(count)::value, kAhead>(x.from(first), weights, depth, y.from(first), accumulate,
                                               next + done * (stride == 0 ? depth * kLine : kLine),
                                               stride == 0 ? kAhead * kLine : stride);
  });
}

// Some parts of the inputs of one row, kDepth each, for a full panel: side by side, as the sums of one row would wait
// for each other, but added in order. It prefetches as many parts that follow.
template <int kParts>
inline void panel_parts(const float* x, const float* weights, float* y, bool accumulate) {
  typedef Vector<float> V;
  constexpr int kVectors = kPanel / kLanes<float>;
  V sum[kParts][kVectors];
#pragma GCC unroll 8
  for (int p = 0; p < kParts; ++p)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sum[p][v] = V{};
  for (int k = 0; k < kDepth; ++k, weights += kPanel)
#pragma GCC unroll 8
    for (int p = 0; p < kParts; ++p) {
      const float* part = weights + p * kDepth * kPanel;
#pragma GCC unroll 8
      for (int c = 0; c < kPanel; c += kLine) __builtin_prefetch(part + kParts * kDepth * kPanel + c);
      const V s = broadcast(x[p * kDepth + k]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sum[p][v] += s * load(part + v * kLanes<float>);
    }
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    float* to = y + v * kLanes<float>;
    V total = accumulate ? load(to) + sum[0][v] : sum[0][v];
#pragma GCC unroll 8
    for (int p = 1; p < kParts; ++p) total += sum[p][v];
    store(to, total);
  }
}

template <>
struct Pack<HEED_PACK_FLOAT32> {
  const PackedDense& dense;
  Matrix x;
  int rows;

  static int64_t bytes(int64_t inputs, int64_t columns) {
    return inputs * columns * static_cast<int64_t>(sizeof(float));
  }

  template <class Each>
  static void prepare(const PackedDense&, const Each&) {}

  template <class Weight>
  static void pack_column(const Weight& weight, const PackedDense& to, int64_t column) {
    const PanelColumn at(to, column);
    float* weights = panel_of<float>(to, at.begin, to.inputs) + at.place;
    for (int64_t k = 0; k < to.inputs; ++k) weights[k * at.columns] = weight(k);
  }

  // A few inputs at a time: their rows of weights stay in the first-level cache, and shorter sums are more accurate.
  void multiply(int first, Matrix y, int columns) const {
    const float* panel = panel_of<float>(dense, first, dense.inputs);
    if (columns < kPanel)
      return product<float>({x.data, x.stride, 1}, rows, panel, columns, y.data, y.stride, columns, dense.inputs,
                            false);
    // A single row sums so many parts side by side, each as long as the loop would make it.
    constexpr int kParts = 8 / Sizes::kPanelVectors;
    for (int k = 0; k < dense.inputs;) {
      const int left = dense.inputs - k, chunk = left <= kMostDepth ? left : kDepth;
      const float* weights = panel + static_cast<int64_t>(k) * kPanel;
      if (rows == 1 && (left == kParts * kDepth || left > (kParts - 1) * kDepth + kMostDepth)) {
        panel_parts<kParts>(x.data + k, weights, y.data, k > 0);
        k += kParts * kDepth;
        continue;
      }
      panel_rows({x.data + k, x.stride}, rows, weights, chunk, y, k > 0, weights + chunk * kPanel);
      k += chunk;
    }
  }
};

}  // namespace HEED_ISA
}  // namespace heed
