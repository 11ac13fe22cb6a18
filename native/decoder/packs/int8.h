// Weights as whole numbers in [-127, 127] times a factor for each block of 32 inputs of a column, its largest magnitude
// / 127: the whole numbers of llama.cpp's Q8_0.
#pragma once

#include "blocks.h"

namespace heed {
namespace HEED_ISA {

struct Int8Blocks {
  static constexpr int kBits = 8;
  static constexpr float kMost = 127;
  template <class Bytes>
  static constexpr int kOffset = Bytes::kOffset;

  static float quantise(const float* weights, int8_t* whole) {
    float most = 0;
    for (int i = 0; i < kBlock; ++i) most = __builtin_fabsf(weights[i]) > most ? __builtin_fabsf(weights[i]) : most;
    const float factor = most / kMost, inverse = factor > 1e-36f ? 1 / factor : 0;
    for (int i = 0; i < kBlock; ++i) {
      const float x = weights[i] * inverse;  // halves are rounded away from zero
      whole[i] = static_cast<int8_t>(x < 0 ? x - 0.5f : x + 0.5f);
    }
    return inverse > 0 ? factor : 0;
  }
};

template <>
struct Pack<HEED_PACK_INT8> : BlockPack<Int8Blocks, ByteSteps> {
  using BlockPack::BlockPack;
};

}  // namespace HEED_ISA
}  // namespace heed
