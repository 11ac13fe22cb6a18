// The kernels for AVX-512.
#define HEED_ISA avx512
#define HEED_SIMD "avx512.h"
#define HEED_SUPPORTED                                                                                              \
  (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && \
   __builtin_cpu_supports("avx512vl"))
#include "decoder/table.h"
// The table comes last.
#include "kernels/table.h"
