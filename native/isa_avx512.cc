// x86-64 with AVX-512: 32 registers of 64 bytes.
#define HEED_ISA avx512
#define HEED_VECTOR_BYTES 64
#define HEED_TABLE kAvx512
#define HEED_NAME "avx512"
#define HEED_SUPPORTED                                                                                              \
  (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && \
   __builtin_cpu_supports("avx512vl"))
#include "decoder/table.h"
// The table comes last.
#include "kernels/table.h"
