// The kernels for every machine.
#define HEED_ISA baseline
#define HEED_SIMD "baseline.h"
#define HEED_SUPPORTED true
#include "decoder/table.h"
// The table comes last.
#include "kernels/table.h"
