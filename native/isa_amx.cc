// x86-64 with AVX-512 and the matrix units: products of bfloat16; all else as AVX-512 has it.
#define HEED_ISA amx
#define HEED_VECTOR_BYTES 64
#define HEED_REGISTERS 32
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/amx.h"
#include "kernels/bias_gradient.h"
#include "kernels/registry.h"

namespace heed {
namespace amx {
namespace {

// The processor has the units, and the system lets this process use them (which it must be asked for, once).
bool supported() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kBfloat16Products = 1u << 22, kTileRegisters = 1u << 24;
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // of arch_prctl
  if (!kAvx512.supported() || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  if (!(d & kBfloat16Products) || !(d & kTileRegisters)) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

const Kernels& avx512(const Attention& a) { return kAvx512.kernels(a.number); }

void run_forward_panel(const Attention& a, const Forward& results, const uint8_t* finite, const char* packed, int64_t b,
                       int64_t n, int64_t panel, int panel_length, char* scratch) {
  const auto run = TileProducts::serves(a) ? forward_panel<Bfloat16, TileProducts> : avx512(a).forward_panel;
  run(a, results, finite, packed, b, n, panel, panel_length, scratch);
}

size_t forward_bytes(const Attention& a) {
  return TileProducts::serves(a) ? ForwardScratch<TileProducts>::bytes(a) : avx512(a).forward_bytes(a);
}

void run_backward_part(const Attention& a, const Backward& pass, const uint8_t* finite, int64_t b, int64_t group,
                       int64_t part, int64_t parts, void* key_gradient, void* value_gradient, char* scratch) {
  if (!TileProducts::serves(a))
    return avx512(a).backward_part(a, pass, finite, b, group, part, parts, key_gradient, value_gradient, scratch);
  backward_part<Bfloat16, TileScores>(a, pass, finite, b, group, part, parts, static_cast<float*>(key_gradient),
                                      static_cast<float*>(value_gradient), scratch);
}

void run_bias_gradient(const Attention& a, const Backward& pass, const uint8_t* finite, const BiasRows& owned,
                       void* target, char* scratch) {
  if (!TileProducts::serves(a)) return avx512(a).bias_gradient(a, pass, finite, owned, target, scratch);
  bias_gradient_rows<Bfloat16, TileScores>(a, pass, finite, owned, static_cast<float*>(target), scratch);
}

size_t backward_bytes(const Attention& a) {
  return TileProducts::serves(a) ? BackwardScratch<float>::bytes(a) + TileScores::bytes(a)
                                 : avx512(a).backward_bytes(a);
}

const Kernels& kernels(Number number) {
  static const Kernels bfloat16 = [] {
    Kernels k = kAvx512.kernels(Number::kBfloat16);
    k.forward_bytes = forward_bytes;
    k.packed_bytes = TileProducts::packed_bytes;
    k.pack = TileProducts::pack;
    k.forward_panel = run_forward_panel;
    k.backward_bytes = backward_bytes;
    k.backward_part = run_backward_part;
    k.bias_gradient = run_bias_gradient;
    return k;
  }();
  return number == Number::kBfloat16 ? bfloat16 : kAvx512.kernels(number);
}

}  // namespace
}  // namespace amx

extern const InstructionSet kAmx = {"amx", amx::supported, amx::kernels};

}  // namespace heed
