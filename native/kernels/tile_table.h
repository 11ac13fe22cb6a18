// The kernel table of an instruction set that multiplies tiles of bfloat16, see tiles.h. All else is AVX-512.
#pragma once

#include "bias_gradient.h"
#include "registry.h"
#include "tiles.h"

namespace heed {
namespace HEED_ISA {

template <class Unit>
const Kernels& tile_kernels(const HeedAttention& a) {
  typedef TileProducts<Unit> Products;
  typedef TileGradients<Unit> Gradients;
  if (!Products::serves(a)) return avx512::kInstructionSet.kernels(a);
  // Of each thread: the lock of a static that all share would stay closed in a child that is forked while it is held.
  static thread_local const Kernels with_tiles = [&] {
    Kernels k = avx512::kInstructionSet.kernels(a);
    k.forward_bytes = scratch_bytes<ForwardScratch<Products>, HeedAttention>;
    k.packed_bytes = Products::packed_bytes;
    k.pack = Products::pack;
    k.forward = forward<Bfloat16, Products>;
    k.backward_bytes = scratch_bytes<BackwardScratch<Gradients>, HeedAttention>;
    k.backward = backward<Bfloat16, Gradients>;
    k.bias_gradient = bias_gradient<Bfloat16, Gradients>;
    k.capture_gradients = capture_gradients<Bfloat16, Gradients>;
    return k;
  }();
  return with_tiles;
}

template <class Unit>
constexpr InstructionSet tile_instruction_set(const char* name, bool (*supported)()) {
  return {name,
          supported,
          tile_kernels<Unit>,
          [](const HeedRows& rows) -> const RowKernels& { return avx512::kInstructionSet.row_kernels(rows); },
          []() -> const DecoderKernels& { return avx512::kInstructionSet.decoder_kernels(); },
          kBlockSizes};
}

}  // namespace HEED_ISA
}  // namespace heed
