// Packed weights of dense layers: panels of as many columns as the micro-kernel keeps in registers. A panel holds the
// columns of one input after another, so a product reads memory in order. The last panel is padded with zeros to full
// vectors.
//
// In int8 panels the weights of inputs 4 k .. 4 k + 3 of a column are adjacent, as byte instructions need them; inputs
// are padded with zeros.
#pragma once

#include "../kernels/block.h"
#include "registry.h"

namespace heed {
namespace HEED_ISA {

inline constexpr int kPanel = Sizes::kPanelVectors * kLanes<float>;
inline constexpr int kGroup = 4;  // inputs whose int8 weights are adjacent

// The number of columns of the panel that begins at column `begin`.
HEED_INLINE int panel_columns(int64_t outputs, int64_t begin) {
  return round_up(min(kPanel, outputs - begin), kLanes<float>);
}

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

// Calls use(bytes) with the struct of simd/ that multiplies bytes on this machine. False: it has none.
template <class Use>
inline bool with_bytes([[maybe_unused]] const Use& use) {
#ifdef HEED_DOT_BYTES
  if (DotBytes::supported()) return use(DotBytes{}), true;
#endif
#ifdef HEED_PAIR_BYTES
  return use(PairBytes{}), true;
#else
  return false;
#endif
}

// What is added to the bytes of rows, from -127 to 127: some instructions take them unsigned.
inline int byte_bias() {
  int bias = 0;
  with_bytes([&](auto bytes) { bias = decltype(bytes)::kBias; });
  return bias;
}

inline int64_t row_numbers(int64_t numbers) { return round_up(numbers, kLanes<float>); }

inline int64_t packed_bytes(int64_t inputs, int64_t outputs, int pack) {
  const int64_t columns = row_numbers(outputs);
  switch (pack) {
    case HEED_PACK_BFLOAT16: return inputs * columns * static_cast<int64_t>(sizeof(Bfloat16));
    case HEED_PACK_INT8: return round_up(inputs, kGroup) * columns;
    default: return inputs * columns * static_cast<int64_t>(sizeof(float));
  }
}

// Copies the weights of one output, `step` apart, to their column of a panel, whose rows are `columns` apart.
inline void pack_column(const float* from, int64_t step, int64_t count, int columns, float* to) {
  for (int64_t k = 0; k < count; ++k) to[k * columns] = from[k * step];
}
inline void pack_column(const float* from, int64_t step, int64_t count, int columns, Bfloat16* to) {
  for (int64_t k = 0; k < count; ++k) {
    Bfloat16 narrow[kLanes<float>];
    store_narrow(narrow, broadcast(from[k * step]));
    to[k * columns] = narrow[0];
  }
}

// The same as whole numbers in [-127, 127]; `offset` compensates for bytes of rows, which are byte_bias() too large.
// Returns the factor of the column: NaN if a weight is not finite, so that results are NaN, too.
inline float pack_column(const float* from, int64_t step, int64_t count, int columns, int8_t* to, int32_t* offset) {
  const int bias = byte_bias();
  float largest = 0, nonfinite = 0;
  for (int64_t k = 0; k < count; ++k) {
    const float magnitude = __builtin_fabsf(from[k * step]);
    largest = magnitude > largest ? magnitude : largest;
    nonfinite += magnitude - magnitude;
  }
  if (nonfinite != 0) return nonfinite;  // NaN
  const float factor = largest / 127;
  for (int64_t k = 0; k < count && factor > 0; ++k) {
    const float x = __builtin_rintf(from[k * step] / factor);
    const int8_t weight = static_cast<int8_t>(x > 127 ? 127 : x < -127 ? -127 : x);
    to[k / kGroup * kGroup * columns + k % kGroup] = weight;
    *offset -= bias * weight;
  }
  return factor;
}

// Packs one layer to the columns of a packed one from `column` on.
inline void pack_dense(const HeedDense& dense, int64_t column, const PackedDense& packed) {
  const int64_t input_step = dense.transposed ? 1 : dense.outputs, output_step = dense.transposed ? dense.inputs : 1;
  const int64_t bytes_of_column = packed_bytes(dense.inputs, kLanes<float>, packed.pack) / kLanes<float>;
  for (int64_t c = 0; c < dense.outputs; ++c) {
    const int64_t at = column + c, begin = at / kPanel * kPanel, place = at - begin;
    const int columns = panel_columns(packed.outputs, begin);
    const float* from = dense.weight + c * output_step;
    char* panel = packed.weight + begin * bytes_of_column;
    if (packed.pack == HEED_PACK_BFLOAT16)
      pack_column(from, input_step, dense.inputs, columns, reinterpret_cast<Bfloat16*>(panel) + place);
    else if (packed.pack == HEED_PACK_INT8)
      packed.factor[at] = pack_column(from, input_step, dense.inputs, columns,
                                      reinterpret_cast<int8_t*>(panel) + place * kGroup, packed.offset + at);
    else
      pack_column(from, input_step, dense.inputs, columns, reinterpret_cast<float*>(panel) + place);
  }
}

}  // namespace HEED_ISA
}  // namespace heed
