// The kernels for AVX512_BF16, products of pairs of bfloat16 in vectors. All else is AVX-512.
#define HEED_ISA avx512_bf16
#define HEED_SIMD "avx512.h"
#include <cpuid.h>

#include "kernels/bfloat16_dots.h"
#include "kernels/tile_table.h"

namespace heed {
namespace avx512_bf16 {
namespace {

bool supported() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kBfloat16Products = 1u << 5;
  return avx512::kInstructionSet.supported() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & kBfloat16Products);
}

}  // namespace

extern const InstructionSet kInstructionSet = tile_instruction_set<DotUnit>("avx512_bf16", supported);

}  // namespace avx512_bf16
}  // namespace heed
