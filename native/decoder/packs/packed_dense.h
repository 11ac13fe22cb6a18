// A packed dense layer, for the core and the kernels of every instruction set.
#pragma once

#include <cstdint>

#include "../../include/heed_decoder.h"

namespace heed {

// In place of a HeedPack: float32 weights that are not packed, see packs/in_place.h.
inline constexpr int kInPlace = HEED_PACKS;

// Adjacent dense layers of the same input, their weights in panels: see panels.h.
struct PackedDense {
  char* weight;         // as the struct of the pack stores them
  const float* bias;    // of each column; 0 without a bias
  int inputs, outputs;  // outputs of all layers
  int pack;             // HeedPack or kInPlace
};

}  // namespace heed
