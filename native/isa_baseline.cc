// Every machine: 16-byte vectors (SSE2 on x86-64, NEON on aarch64).
#define HEED_ISA baseline
#define HEED_VECTOR_BYTES 16
#define HEED_TABLE kBaseline
#define HEED_NAME "baseline"
#define HEED_SUPPORTED true
#include "decoder/table.h"
// The table comes last.
#include "kernels/table.h"
