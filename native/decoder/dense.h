// Dense layers of few rows: the weights are read once for all rows, as fast as
// memory gives them.
//
// Weights are packed in panels of as many columns as the micro-kernel keeps in
// registers: panel p holds, for each input, its columns one after the other, so
// that a product reads memory from the first number to the last. The last panel
// has as many columns as there are left, rounded up to full vectors with zeros.
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

// Weights as they are kept, and full vectors of them as float.
HEED_INLINE Vector<float> load_weights(const float* from) { return load(from); }
HEED_INLINE Vector<float> load_weights(const Bfloat16* from) { return load_wide(from); }
HEED_INLINE Vector<float> load_weights(const int8_t* from) {
  typedef int8_t Bytes __attribute__((vector_size(kLanes<float>)));
  return __builtin_convertvector(load_as<Bytes>(from), Vector<float>);
}

// Puts the weights of one output into its column of a panel, `columns` apart;
// returns the factor that they lack.
inline float pack_column(const float* from, int64_t step, int64_t count, int columns, float* to) {
  for (int64_t k = 0; k < count; ++k) to[k * columns] = from[k * step];
  return 1;
}
inline float pack_column(const float* from, int64_t step, int64_t count, int columns, Bfloat16* to) {
  for (int64_t k = 0; k < count; ++k) {
    Bfloat16 narrow[kLanes<float>];
    store_narrow(narrow, broadcast(from[k * step]));
    to[k * columns] = narrow[0];
  }
  return 1;
}
inline float pack_column(const float* from, int64_t step, int64_t count, int columns, int8_t* to) {
  float highest = 0;
  for (int64_t k = 0; k < count; ++k) {
    const float magnitude = __builtin_fabsf(from[k * step]);
    highest = magnitude > highest ? magnitude : highest;
  }
  if (!(highest > 0 && is_finite(highest))) return highest;  // all 0; or infinite: the factor says so
  const float factor = highest / 127;
  for (int64_t k = 0; k < count; ++k) {
    const float x = from[k * step] / factor;
    to[k * columns] = static_cast<int8_t>(x == x ? __builtin_rintf(x) : 0);
  }
  return factor;
}

template <class Weight>
inline void pack_as(const HeedDense& dense, int64_t column, const PackedDense& packed) {
  const int64_t input_step = dense.transposed ? 1 : dense.outputs, output_step = dense.transposed ? dense.inputs : 1;
  Weight* weights = static_cast<Weight*>(const_cast<void*>(packed.weight));
  for (int64_t c = 0; c < dense.outputs; ++c) {
    const int64_t at = column + c, begin = at / kPanel * kPanel;
    Weight* to = weights + begin * dense.inputs + (at - begin);
    const int columns = panel_columns(packed.outputs, begin);
    const_cast<float*>(packed.factor)[at] =
        pack_column(dense.weight + c * output_step, input_step, dense.inputs, columns, to);
  }
}

inline void pack_dense(const HeedDense& dense, int64_t column, const PackedDense& packed) {
  switch (packed.pack) {
    case HEED_PACK_BFLOAT16: return pack_as<Bfloat16>(dense, column, packed);
    case HEED_PACK_INT8: return pack_as<int8_t>(dense, column, packed);
    default: return pack_as<float>(dense, column, packed);
  }
}

// Rows of numbers, `stride` apart.
struct Rows {
  float* data;
  ptrdiff_t stride;

  HEED_INLINE float* operator[](int64_t row) const { return data + row * stride; }
  HEED_INLINE Rows from(int64_t row) const { return {data + row * stride, stride}; }
};

// y = x W for one panel. Weights that are kept in less than float become float
// a few rows at a time, in the first-level cache, as the micro-kernel would go
// over them.
inline void panel_product(const PackedDense&, const float* panel, Rows x, int rows, Rows y, int columns, int inputs) {
  product<float>({x.data, x.stride, 1}, rows, panel, columns, y.data, y.stride, columns, inputs, false);
}
template <class Weight>
inline void panel_product(const PackedDense& dense, const Weight* panel, Rows x, int rows, Rows y, int columns,
                          int inputs) {
  constexpr int kMost = 96, kFew = 64;  // as `product` cuts the depth
  alignas(64) float wide[kMost * kPanel];
  for (int k = 0; k < inputs;) {
    const int deep = inputs - k <= kMost ? inputs - k : kFew;
    for (int i = 0; i < deep * columns; i += kLanes<float>)
      store(wide + i, load_weights(panel + static_cast<ptrdiff_t>(k) * columns + i));
    product<float>({x.data + k, x.stride, 1}, rows, wide, columns, y.data, y.stride, columns, deep, k > 0);
    k += deep;
  }
  if (dense.pack != HEED_PACK_INT8) return;
  const ptrdiff_t first = (panel - static_cast<const Weight*>(dense.weight)) / dense.inputs;
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < columns; c += kLanes<float>) store(y[r] + c, load(y[r] + c) * load(dense.factor + first + c));
}

template <class Weight, class Column, class Finish>
inline void panels_as(const PackedDense& dense, Rows x, int rows, Rows y, const Column& y_column,
                      const Finish& finish) {
  for (int c = 0; c < dense.outputs; c += kPanel) {
    const int columns = panel_columns(dense.outputs, c);
    const Weight* panel = static_cast<const Weight*>(dense.weight) + static_cast<ptrdiff_t>(c) * dense.inputs;
    panel_product(dense, panel, x, rows, {y.data + y_column(c), y.stride}, columns, dense.inputs);
    finish(c, columns);
  }
}

// y = x W for all columns, a panel at a time: finish(first column, columns) is
// called while the panel's results are at hand. `y` holds them from
// `y_column(first column)` on.
template <class Column, class Finish>
inline void dense_panels(const PackedDense& dense, Rows x, int rows, Rows y, const Column& y_column,
                         const Finish& finish) {
  switch (dense.pack) {
    case HEED_PACK_BFLOAT16: return panels_as<Bfloat16>(dense, x, rows, y, y_column, finish);
    case HEED_PACK_INT8: return panels_as<int8_t>(dense, x, rows, y, y_column, finish);
    default: return panels_as<float>(dense, x, rows, y, y_column, finish);
  }
}

// y = function(x W + b), a vector at a time. Columns up to the next full vector
// are written too.
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
