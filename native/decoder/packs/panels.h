// What the packs share. Packed weights of dense layers are panels of as many columns as the micro-kernel keeps in
// registers. A panel holds the columns of one input after another, so a product reads memory in order. The last panel
// is padded with zeros to full vectors.
#pragma once

#include "../../kernels/block.h"
#include "packed_dense.h"

namespace heed {
namespace HEED_ISA {

inline constexpr int kPanel = Sizes::kPanelVectors * kLanes<float>;

// The length of a row, padded to full vectors.
inline int64_t row_numbers(int64_t numbers) { return round_up(numbers, kLanes<float>); }

// The number of columns of the panels, at most `panels`, that begin at column `begin`.
HEED_INLINE int panel_columns(int64_t outputs, int64_t begin, int panels = 1) {
  return round_up(min(panels * kPanel, outputs - begin), kLanes<float>);
}

// The weights of the panel that begins at column `begin`, `depth` numbers for each column.
template <class Number>
HEED_INLINE Number* panel_of(const PackedDense& dense, int64_t begin, int64_t depth) {
  return reinterpret_cast<Number*>(dense.weight) + begin * depth;
}

// A column of a packed layer: column `place` of the `columns` of the panel that begins at column `begin`.
struct PanelColumn {
  int64_t begin;
  int place, columns;

  PanelColumn(const PackedDense& dense, int64_t column)
      : begin(column / kPanel * kPanel),
        place(static_cast<int>(column - begin)),
        columns(panel_columns(dense.outputs, begin)) {}
};

// Inputs that formats of whole numbers round together, and the numbers of the room that they take then.
inline constexpr int kBlock = 32, kBlockRoom = kBlock + 2;
inline constexpr int kStep = 4;  // inputs whose weights of a column are adjacent there
HEED_INLINE int blocks_of(int64_t inputs) { return static_cast<int>((inputs + kBlock - 1) / kBlock); }

// Rows of numbers, `stride` apart. The second half of each row is room for the form in which a pack multiplies it.
struct Matrix {
  float* data;
  ptrdiff_t stride;

  HEED_INLINE float* operator[](int64_t row) const { return data + row * stride; }
  HEED_INLINE Matrix from(int64_t row) const { return {data + row * stride, stride}; }
  HEED_INLINE float* room(int64_t row) const { return data + row * stride + stride / 2; }

  static int64_t stride_of(int64_t numbers) {
    return 2 * round_up(int64_t{blocks_of(numbers)} * kBlockRoom, kLanes<float>);
  }
};

// The weights of one output, by their inputs.
struct FloatColumn {
  static constexpr bool kWhole = false;
  const float* from;
  int64_t step;

  HEED_INLINE float operator()(int64_t k) const { return from[k * step]; }
};
// Those given as whole numbers times factors.
struct WholeColumn {
  static constexpr bool kWhole = true;
  const int8_t* from;
  int64_t step;
  const float* factors;
  int64_t factor_step, factor_inputs;

  HEED_INLINE int8_t whole(int64_t k) const { return from[k * step]; }
  HEED_INLINE float factor(int64_t k) const { return factors[k / factor_inputs * factor_step]; }
  HEED_INLINE float operator()(int64_t k) const { return static_cast<float>(whole(k)) * factor(k); }
};

// A format of packed weights, by its HeedPack: y = x W for some rows. Each is a specialisation with
//   static int64_t bytes(int64_t inputs, int64_t columns);  // of a layer's weights; full vectors of columns
//   // Comes first; each(use) calls use(weight) for all outputs.
//   template <class Each>
//   static void prepare(const PackedDense& to, const Each& each);
//   // Packs the weights of one output, a FloatColumn or a WholeColumn. All bytes are 0 before.
//   template <class Weight>
//   static void pack_column(const Weight& weight, const PackedDense& to, int64_t column);
//   Pack{dense, x, rows}  // brings the rows to the form that all panels multiply
//   void multiply(int first, Matrix y, int columns) const;  // writes the panel that begins at column `first`
template <int kPack>
struct Pack;

// Panels that a product multiplies together: memory is read faster in long stretches of a row of weights.
template <int kPack>
inline constexpr int kPanelsTogether = kPack == kInPlace ? 512 / kPanel : 1;

// Calls tile(first row, rows, lines, done), rows and lines as Constants, for the tiles of rows that go through a panel.
// They prefetch the next part of the panel, kLines cache lines in each step of a tile: the first tile all of them or,
// with enough rows, the first tiles one each. `lines` are those of this tile, `done` those of the tiles before.
template <int kLines, class Tile>
inline void panel_tiles(int rows, const Tile& tile) {
  const bool slowly = rows >= kLines * Sizes::kRows;
  int done = 0;
  in_even_tiles<Sizes::kRows>(rows, [&](int first, auto count) {
    if (done == kLines)
      tile(first, count, Constant<0>{}, done);
    else if (slowly)
      tile(first, count, Constant<1>{}, done), ++done;
    else
      tile(first, count, Constant<kLines>{}, done), done = kLines;
  });
}

}  // namespace HEED_ISA
}  // namespace heed
