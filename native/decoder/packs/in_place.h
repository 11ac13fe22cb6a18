// float32 weights that stay where they are, as a Keras layer has them: large ones, of which a packed copy would double
// the memory. Numbers are summed in the order of the packed ones, so results are the same bits.
//
// A few rows read long stretches of the rows of weights, some inputs together, and keep their sums in the first-level
// cache. Prompts, transposed weights and panels where a layer begins or ends multiply a copy of some inputs of one
// panel at a time.
#pragma once

#include "float32.h"

namespace heed {
namespace HEED_ISA {

// The weights of columns [begin, end): rows of inputs, `stride` apart, or if `transposed` of columns.
struct WeightsInPlace {
  const float* data;
  ptrdiff_t stride;
  int begin, end;
  bool transposed;

  HEED_INLINE const float* at(int64_t input, int64_t column) const {
    column -= begin;
    return transposed ? data + column * stride + input : data + input * stride + column;
  }
};

template <>
struct Pack<kInPlace> {
  static constexpr int kMostParts = 4;  // query, key, value and gate
  static constexpr int kInputs = 8;     // that rows read together
  static constexpr int kRows = 8;       // that use them while they are in registers
  static constexpr int kFewRows = 8 * kRows;
  static constexpr int kStretch = kPanelsTogether<kInPlace> * kPanel;

  // The layer, in the room of packed weights.
  struct Layer {
    int count;
    WeightsInPlace parts[kMostParts];
  };

  const PackedDense& dense;
  Matrix x;
  int rows;

  static int64_t bytes(int64_t, int64_t) { return sizeof(Layer); }

  static void place(const HeedDense* const* parts, int64_t count, const PackedDense& to) {
    Layer& layer = *reinterpret_cast<Layer*>(to.weight);
    layer.count = static_cast<int>(count);
    for (int i = 0, column = 0; i < layer.count; ++i) {
      const HeedDense& part = *parts[i];
      const int end = column + static_cast<int>(part.outputs);
      layer.parts[i] = {part.weight, part.transposed ? part.inputs : part.outputs, column, end, part.transposed != 0};
      column = end;
    }
  }

  void multiply(int first, Matrix y, int columns) const {
    for (int c = first, end = first + columns; c < end;) {
      const WeightsInPlace& part = part_of(c);
      const int left = static_cast<int>(min(part.end, end)) - c, whole = left / kPanel * kPanel;
      const bool stays = rows <= kFewRows && whole > 0 && !part.transposed;
      const int some = stays ? whole : static_cast<int>(min(kPanel, end - c));
      const Matrix to{y.data + (c - first), y.stride};
      if (stays)
        multiply_stretch(part, c, to, some);
      else
        multiply_copy(c, to, some);
      c += some;
    }
  }

 private:
  const Layer& layer() const { return *reinterpret_cast<const Layer*>(dense.weight); }

  const WeightsInPlace& part_of(int column) const {
    const WeightsInPlace* part = layer().parts;
    while (column >= part->end) ++part;
    return *part;
  }

  // The inputs that are summed apart, from `k` on.
  int chunk_at(int k) const { return dense.inputs - k <= kMostDepth ? dense.inputs - k : kDepth; }

  // A few rows, for whole panels of one part.
  void multiply_stretch(const WeightsInPlace& part, int first, Matrix y, int columns) const {
    alignas(64) float sums[kRows * kStretch];
    for (int k = 0, chunk = 0; k < dense.inputs; k += chunk) {
      chunk = chunk_at(k);
      for (int row = 0; row < rows; row += kRows) {
        const int count = static_cast<int>(min(kRows, rows - row));
        in_chunks<kInputs>(chunk, [&](int i, auto inputs) {
          const Matrix from{x[row] + k + i, x.stride};
          const float* weights = part.at(k + i, first);
          // The next inputs, but those that are read again for more rows: these are in the second-level cache.
          const bool ahead = row == 0 && k + i + 2 * kInputs <= dense.inputs;
          add_inputs<inputs.value>(from, count, weights, part.stride, columns, i == 0, sums,
                                   ahead ? kInputs * part.stride : 0);
        });
        for (int r = 0; r < count; ++r)
          for (int c = 0; c < columns; c += kLanes<float>) {
            float* to = y[row + r] + c;
            const Vector<float> sum = load(sums + r * kStretch + c);
            store(to, k > 0 ? load(to) + sum : sum);
          }
      }
    }
  }

  // sums (+)= x W for kCount inputs. It prefetches what is `ahead` of them.
  template <int kCount>
  static void add_inputs(Matrix x, int rows, const float* weights, ptrdiff_t stride, int columns, bool first,
                         float* sums, ptrdiff_t ahead) {
    for (int c = 0; c < columns; c += kLanes<float>, weights += kLanes<float>) {
      Vector<float> w[kCount];
#pragma GCC unroll 8
      for (int i = 0; i < kCount; ++i) {
        w[i] = load(weights + i * stride);
        __builtin_prefetch(weights + i * stride + ahead, 0, 2);
      }
      for (int r = 0; r < rows; ++r) {
        float* to = sums + r * kStretch + c;
        const float* from = x[r];
        Vector<float> sum = first ? Vector<float>{} : load(to);
#pragma GCC unroll 8
        for (int i = 0; i < kCount; ++i) sum += broadcast(from[i]) * w[i];
        store(to, sum);
      }
    }
  }

  // Any rows, for one panel.
  void multiply_copy(int first, Matrix y, int columns) const {
    alignas(64) float copy[kMostDepth * kPanel];
    const WeightsInPlace& part = part_of(first);
    for (int k = 0, chunk = 0; k < dense.inputs; k += chunk) {
      chunk = chunk_at(k);
      copy_inputs(k, chunk, first, columns, copy);
      const Matrix from{x.data + k, x.stride};
      if (columns < kPanel)
        product<float>({from.data, from.stride, 1}, rows, copy, columns, y.data, y.stride, columns, chunk, k > 0);
      else if (part.transposed || k + chunk == dense.inputs)  // the copy has prefetched its next inputs, or is the last
        panel_rows(from, rows, copy, chunk, y, k > 0, copy);
      else
        panel_rows(from, rows, copy, chunk, y, k > 0, part.at(k + chunk, first), part.stride);
    }
  }

  // copy[i][c] = the weight of input k + i and column first + c; 0 beyond the layer.
  void copy_inputs(int k, int inputs, int first, int columns, float* copy) const {
    for (int c = 0; c < columns;) {
      if (first + c >= dense.outputs) {
        for (int i = 0; i < inputs; ++i) store_some(copy + i * columns + c, columns - c, Vector<float>{});
        return;
      }
      const WeightsInPlace& part = part_of(first + c);
      const int count = static_cast<int>(min(part.end - first, columns)) - c;
      const float* from = part.at(k, first + c);
      if (part.transposed)
        copy_transposed(from, part.stride, inputs, count, copy + c, columns);
      else
        for (int i = 0; i < inputs; ++i)
          for (int j = 0; j < count; j += kLanes<float>)
            store_some(copy + i * columns + c + j, count - j, load_some(from + i * part.stride + j, count - j));
      c += count;
    }
  }

  static void copy_transposed(const float* from, ptrdiff_t stride, int inputs, int columns, float* to, int to_stride) {
    for (int c = 0; c < columns; c += kLanes<float>)
      for (int i = 0; i < inputs; i += kLanes<float>) {
        Vector<float> square[kLanes<float>];
#pragma GCC unroll 16
        for (int r = 0; r < kLanes<float>; ++r) {
          const float* at = from + (c + r) * stride + i;
          __builtin_prefetch(at + kDepth, 0, 2);
          square[r] = c + r < columns ? load_some(at, inputs - i) : Vector<float>{};
        }
        transpose<float>(square);
        for (int r = 0; r < kLanes<float> && i + r < inputs; ++r)
          store_some(to + (i + r) * to_stride + c, columns - c, square[r]);
      }
  }
};

}  // namespace HEED_ISA
}  // namespace heed
