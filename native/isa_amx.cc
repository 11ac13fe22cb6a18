// The kernels for AMX, the matrix units: products of bfloat16. All else is AVX-512.
#define HEED_ISA amx
#define HEED_SIMD "avx512.h"
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/amx.h"
#include "kernels/tile_table.h"

namespace heed {
namespace amx {
namespace {

// Whether the processor has the units and the system grants them to this process, which must ask once.
bool supported() {
#ifdef HEED_AMX_IN_SOFTWARE
  return avx512::kInstructionSet.supported();
#else
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kBfloat16Products = 1u << 22, kTileRegisters = 1u << 24;
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // of arch_prctl
  if (!avx512::kInstructionSet.supported() || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  if (!(d & kBfloat16Products) || !(d & kTileRegisters)) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#endif
}

}  // namespace

extern const InstructionSet kInstructionSet = tile_instruction_set<MatrixUnit>("amx", supported);

}  // namespace amx
}  // namespace heed
