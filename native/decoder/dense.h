// Dense layers of few rows. They are bound by memory: weights are read once for all rows.
#pragma once

#include "integers.h"

namespace heed {
namespace HEED_ISA {

// Some rows of y (+)= x W for a full panel of float weights. Each row of weights prefetches kAhead cache lines of the
// next part: a row is used for less time than it takes to come from the third-level cache.
template <int kRows, int kAhead>
inline void panel_tile(Matrix x, const float* weights, int depth, Matrix y, bool accumulate, const float* ahead) {
  typedef Vector<float> V;
  constexpr int kVectors = kPanel / kLanes<float>, kLine = 64 / static_cast<int>(sizeof(float));
  V sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sum[r][v] = V{};
  for (int k = 0; k < depth; ++k, weights += kPanel, ahead += kAhead * kLine) {
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

// All rows for some of the inputs.
inline void panel_rows(Matrix x, int rows, const float* weights, int depth, Matrix y, bool accumulate) {
  constexpr int kLine = 64 / static_cast<int>(sizeof(float)), kLines = kPanel > kLine ? kPanel / kLine : 1;
  const float* next = weights + depth * kPanel;
  panel_tiles<kLines>(rows, [&](int first, auto count, auto lines, int done) {
    panel_tile<decltype(count)::value, decltype(lines)::value>(x.from(first), weights, depth, y.from(first), accumulate,
                                                               next + done * depth * kLine);
  });
}

// Some parts of the inputs of one row, kDepth each, for a full panel: side by side, as the sums of one row would wait
// for each other, but added in order. It prefetches as many parts that follow.
template <int kParts>
inline void panel_parts(const float* x, const float* weights, float* y, bool accumulate) {
  typedef Vector<float> V;
  constexpr int kVectors = kPanel / kLanes<float>, kLine = 64 / static_cast<int>(sizeof(float));
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

// y = x W for one panel of float weights, a few inputs at a time: their rows of weights stay in the first-level cache,
// and shorter sums are more accurate.
inline void panel_product(const PackedDense& dense, const float* panel, Matrix x, int rows, Matrix y, int columns) {
  if (columns < kPanel)
    return product<float>({x.data, x.stride, 1}, rows, panel, columns, y.data, y.stride, columns, dense.inputs, false);
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
    panel_rows({x.data + k, x.stride}, rows, weights, chunk, y, k > 0);
    k += chunk;
  }
}

// The same with bfloat16 weights, converted to float a few rows at a time, in the first-level cache.
inline void panel_product(const PackedDense& dense, const Bfloat16* panel, Matrix x, int rows, Matrix y, int columns) {
  alignas(64) float wide[kMostDepth * kPanel];
  for (int k = 0; k < dense.inputs;) {
    const int chunk = dense.inputs - k <= kMostDepth ? dense.inputs - k : kDepth;
    for (int i = 0; i < chunk * columns; i += kLanes<float>)
      store(wide + i, load_wide(panel + static_cast<int64_t>(k) * columns + i));
    product<float>({x.data + k, x.stride, 1}, rows, wide, columns, y.data, y.stride, columns, chunk, k > 0);
    k += chunk;
  }
}

// function(begin, end, worker) for ranges of `count` things that make up [0, count), on the threads of a team. `work`:
// the multiplications of one thing. A stage of a team costs about a microsecond, so less than kLeast stays on one
// thread.
template <class Function>
inline void share_ranges(Team* team, int count, int64_t work, const Function& function) {
  constexpr int64_t kLeast = 1 << 16, kMostRanges = 64;
  if (!team || count < 2 || work * count < 2 * kLeast) return function(0, count, 0);
  struct Ranges {
    const Function& function;
    int count;
    int64_t ranges;
  } ranges{function, count, min(min(count, kMostRanges), max(2, work * count / kLeast))};
  share(
      *team, ranges.ranges,
      [](void* context, int64_t index, int worker) {
        const Ranges& r = *static_cast<const Ranges*>(context);
        r.function(static_cast<int>(index * r.count / r.ranges), static_cast<int>((index + 1) * r.count / r.ranges),
                   worker);
      },
      &ranges);
}

// y = x W for all columns, a panel at a time; a team shares the panels. finish(first column, columns) is called while
// the results of a panel are in the cache; `y` holds them from `y_column(first column)` on.
template <class Column, class Finish>
inline void apply_dense_panels(Team* team, const PackedDense& dense, Matrix x, int rows, Matrix y,
                               const Column& y_column, const Finish& finish) {
  const RowForm form = row_form(rows);
  for (int r = 0; dense.pack == HEED_PACK_INT8 && r < rows; ++r) round_row(x, r, dense.inputs, form);
  const int panels = static_cast<int>((int64_t{dense.outputs} + kPanel - 1) / kPanel);
  share_ranges(team, panels, int64_t{rows} * dense.inputs * kPanel, [&](int begin, int end, int) {
    for (int panel = begin; panel < end; ++panel) {
      const int c = panel * kPanel, columns = panel_columns(dense.outputs, c);
      const int64_t at = static_cast<int64_t>(c) * dense.inputs;
      const Matrix to{y.data + y_column(c), y.stride};
      if (dense.pack == HEED_PACK_INT8)
        int8_product(form, dense, c, x, rows, to, columns);
      else if (dense.pack == HEED_PACK_BFLOAT16)
        panel_product(dense, reinterpret_cast<const Bfloat16*>(dense.weight) + at, x, rows, to, columns);
      else
        panel_product(dense, reinterpret_cast<const float*>(dense.weight) + at, x, rows, to, columns);
      finish(c, columns);
    }
  });
}

// y = function(x W + b), a vector at a time. Columns up to the next full vector are written too.
template <class Function>
inline void apply_dense(Team* team, const PackedDense& dense, Matrix x, int rows, Matrix y, const Function& function) {
  apply_dense_panels(
      team, dense, x, rows, y, [](int c) { return c; },
      [&](int first, int columns) {
        for (int r = 0; r < rows; ++r)
          for (int c = first; c < first + columns; c += kLanes<float>) {
            float* at = y[r] + c;
            store(at, function(load(at) + load(dense.bias + c)));
          }
      });
}

inline void apply_dense(Team* team, const PackedDense& weights, Matrix x, int rows, Matrix y) {
  apply_dense(team, weights, x, rows, y, [](Vector<float> v) { return v; });
}

}  // namespace HEED_ISA
}  // namespace heed
