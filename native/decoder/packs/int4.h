// Weights as whole numbers in [-8, 7] times a factor for each block of 32 inputs of a column, the weight of the largest
// magnitude / -8: the whole numbers of llama.cpp's Q4_0. A byte holds a number of one step plus 8, and 16 times one of
// the next step.
#pragma once

#include "blocks.h"

namespace heed {
namespace HEED_ISA {

struct Int4Blocks {
  static constexpr int kBits = 4;
  static constexpr float kMost = 8;
  template <class Bytes>
  static constexpr int kOffset = 8;

  static float quantise(const float* weights, int8_t* whole) {
    float most = 0;
    for (int i = 0; i < kBlock; ++i) most = __builtin_fabsf(weights[i]) > __builtin_fabsf(most) ? weights[i] : most;
    const float factor = most / -kMost, inverse = __builtin_fabsf(factor) > 1e-36f ? 1 / factor : 0;
    for (int i = 0; i < kBlock; ++i) {
      const int stored = static_cast<int>(weights[i] * inverse + 8.5f);
      whole[i] = static_cast<int8_t>((stored > 15 ? 15 : stored) - 8);
    }
    return inverse != 0 ? factor : 0;
  }
};

template <>
struct Pack<HEED_PACK_INT4> : BlockPack<Int4Blocks, NibbleSteps> {
  using BlockPack::BlockPack;
};

}  // namespace HEED_ISA
}  // namespace heed
