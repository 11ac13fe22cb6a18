// The kernels for AMX, the matrix units: products of bfloat16. All else is AVX-512.
#define HEED_ISA amx
#define HEED_SIMD "avx512.h"
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/amx.h"
#include "kernels/bias_gradient.h"
#include "kernels/registry.h"

namespace heed {
namespace amx {
namespace {

// Whether the processor has the units and the system grants them to this process, which must ask once.
bool supported() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kBfloat16Products = 1u << 22, kTileRegisters = 1u << 24;
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // of arch_prctl
  if (!avx512::kInstructionSet.supported() || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  if (!(d & kBfloat16Products) || !(d & kTileRegisters)) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

const Kernels& kernels(const HeedAttention& a) {
  if (!TileProducts::serves(a)) return avx512::kInstructionSet.kernels(a);
  // Of each thread: the lock of a static that all share would stay closed in a child that is forked while it is held.
  static thread_local const Kernels with_tiles = [&] {
    Kernels k = avx512::kInstructionSet.kernels(a);
    k.forward_bytes = scratch_bytes<ForwardScratch<TileProducts>, HeedAttention>;
    k.packed_bytes = TileProducts::packed_bytes;
    k.pack = TileProducts::pack;
    k.forward = forward<Bfloat16, TileProducts>;
    k.backward_bytes = scratch_bytes<BackwardScratch<TileGradients>, HeedAttention>;
    k.backward = backward<Bfloat16, TileGradients>;
    k.bias_gradient = bias_gradient<Bfloat16, TileGradients>;
    return k;
  }();
  return with_tiles;
}

}  // namespace

const InstructionSet kInstructionSet = {
    "amx", supported, kernels,
    [](const HeedRows& rows) -> const RowKernels& { return avx512::kInstructionSet.row_kernels(rows); },
    []() -> const DecoderKernels& { return avx512::kInstructionSet.decoder_kernels(); }};

}  // namespace amx
}  // namespace heed
