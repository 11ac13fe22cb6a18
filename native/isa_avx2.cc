// x86-64 with AVX2 and fused multiply-add: 16 registers of 32 bytes.
#define HEED_ISA avx2
#define HEED_VECTOR_BYTES 32
#define HEED_TABLE kAvx2
#define HEED_NAME "avx2"
#define HEED_SUPPORTED (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
#include "decoder/table.h"
// The table comes last.
#include "kernels/table.h"
