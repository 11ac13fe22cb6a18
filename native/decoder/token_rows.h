// Tokens of sources and prompts: many go through a stack of layers together, each at its own position.
#pragma once

#include "layers.h"

namespace heed {
namespace HEED_ISA {

struct TokenRows {
  static constexpr int64_t kRows = kTokenRows;  // rows that go through the layers together
  static constexpr int64_t kTile = kTokenTile;  // queries of one text that attend together

  Layers layers;
  int32_t *token, *position;  // of each row

  TokenRows(const PackedStack& stack, int64_t rows, int64_t keys, Arena& arena)
      : layers(stack, rows, min(kTile, rows), cache_capacity(keys), arena),
        token(arena.take<int32_t>(rows)),
        position(arena.take<int32_t>(rows)) {}

  // `positions`: a table of position embeddings, or null.
  void embed(int rows, const float* positions) const {
    for (int r = 0; r < rows; ++r) layers.embed(r, token[r], table_row(positions, position[r], layers.stack.width));
  }
};

}  // namespace HEED_ISA
}  // namespace heed
