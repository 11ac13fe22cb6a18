// The kernels for AVX2.
#include <cpuid.h>

// Not all compilers know the name of this feature.
static bool converts_float16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

#define HEED_ISA avx2
#define HEED_SIMD "avx2.h"
#define HEED_SUPPORTED (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && converts_float16())
#include "decoder/table.h"
// The table comes last.
#include "kernels/table.h"
