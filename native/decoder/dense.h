// Dense layers of few rows: the weights are read once for all rows, as fast as memory gives them.
//
// Weights are packed in panels of as many columns as the micro-kernel keeps in registers: panel p holds, for each
// input, its columns one after the other, so that a product reads memory from the first number to the last. The last
// panel has as many columns as there are left, rounded up to full vectors with zeros.
#pragma once

#include "../kernels/block.h"
#include "../kernels/product.h"
#include "registry.h"

namespace heed {
namespace HEED_ISA {

inline constexpr int kPanel = (kRegisters >= 32 ? 4 : 2) * kLanes<float>;

// Columns of the panel that begins at this column.
HEED_INLINE int panel_columns(int64_t outputs, int64_t begin) {
  return round_up(least(kPanel, outputs - begin), kLanes<float>);
}

inline int64_t row_numbers(int64_t numbers) { return round_up(numbers, kLanes<float>); }

inline int64_t packed_numbers(int64_t inputs, int64_t outputs) { return inputs * row_numbers(outputs); }

inline void pack_dense(const HeedDense& dense, int64_t column, int64_t outputs, float* packed) {
  const int64_t input_step = dense.transposed ? 1 : dense.outputs, output_step = dense.transposed ? dense.inputs : 1;
  for (int64_t c = 0; c < dense.outputs; ++c) {
    const int64_t at = column + c, begin = at / kPanel * kPanel;
    const int columns = panel_columns(outputs, begin);
    float* to = packed + begin * dense.inputs + (at - begin);
    const float* from = dense.weight + c * output_step;
    for (int64_t k = 0; k < dense.inputs; ++k) to[k * columns] = from[k * input_step];
  }
}

// Rows of numbers, `stride` apart.
struct Rows {
  float* data;
  ptrdiff_t stride;

  HEED_INLINE float* operator[](int64_t row) const { return data + row * stride; }
  HEED_INLINE Rows from(int64_t row) const { return {data + row * stride, stride}; }
};

// y = x W for all columns, a panel at a time: finish(first column, columns) is called while the panel's results are at
// hand. `y` holds them from `y_column(first column)` on.
template <class Column, class Finish>
inline void dense_panels(const PackedDense& dense, Rows x, int rows, Rows y, const Column& y_column,
                         const Finish& finish) {
  for (int c = 0; c < dense.outputs; c += kPanel) {
    const int columns = panel_columns(dense.outputs, c);
    product<float>({x.data, x.stride, 1}, rows, dense.weight + static_cast<ptrdiff_t>(c) * dense.inputs, columns,
                   y.data + y_column(c), y.stride, columns, dense.inputs, false);
    finish(c, columns);
  }
}

// y = function(x W + b), a vector at a time. Columns up to the next full vector are written too.
template <class Function>
inline void dense(const PackedDense& dense, Rows x, int rows, Rows y, const Function& function) {
  dense_panels(
      dense, x, rows, y, [](int c) { return c; },
      [&](int first, int columns) {
        for (int r = 0; r < rows; ++r)
          for (int c = first; c < first + columns; c += kLanes<float>) {
            float* at = y[r] + c;
            store(at, function(load(at) + load(dense.bias + c)));
          }
      });
}

inline void dense(const PackedDense& weights, Rows x, int rows, Rows y) {
  dense(weights, x, rows, y, [](Vector<float> v) { return v; });
}

}  // namespace HEED_ISA
}  // namespace heed
