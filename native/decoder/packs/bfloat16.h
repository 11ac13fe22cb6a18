// Weights rounded to the nearest bfloat16, multiplied in float32.
#pragma once

#include "panels.h"

namespace heed {
namespace HEED_ISA {

template <>
struct Pack<HEED_PACK_BFLOAT16> {
  const PackedDense& dense;
  Matrix x;
  int rows;

  static int64_t bytes(int64_t inputs, int64_t columns) {
    return inputs * columns * static_cast<int64_t>(sizeof(Bfloat16));
  }

  template <class Each>
  static void prepare(const PackedDense&, const Each&) {}

  template <class Weight>
  static void pack_column(const Weight& weight, const PackedDense& to, int64_t column) {
    const PanelColumn at(to, column);
    Bfloat16* weights = panel_of<Bfloat16>(to, at.begin, to.inputs) + at.place;
    for (int64_t k = 0; k < to.inputs; ++k) {
      Bfloat16 narrow[kLanes<float>];
      store_narrow(narrow, broadcast(weight(k)));
      weights[k * at.columns] = narrow[0];
    }
  }

  // Weights are converted to float a few rows at a time, in the first-level cache.
  void multiply(int first, Matrix y, int columns) const {
    const Bfloat16* panel = panel_of<Bfloat16>(dense, first, dense.inputs);
    alignas(64) float wide[kMostDepth * kPanel];
    for (int k = 0; k < dense.inputs;) {
      const int chunk = dense.inputs - k <= kMostDepth ? dense.inputs - k : kDepth;
      for (int i = 0; i < chunk * columns; i += kLanes<float>)
        store(wide + i, load_wide(panel + static_cast<int64_t>(k) * columns + i));
      product<float>({x.data + k, x.stride, 1}, rows, wide, columns, y.data, y.stride, columns, chunk, k > 0);
      k += chunk;
    }
  }
};

}  // namespace HEED_ISA
}  // namespace heed
