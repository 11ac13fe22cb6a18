// Any machine: 16-byte vectors (SSE2 on x86-64, NEON on aarch64).
#pragma once

#define HEED_VECTOR_BYTES 16
#include "portable.h"

namespace heed {
namespace HEED_ISA {

struct Simd : Portable {
#if defined(__aarch64__)
  static constexpr int kRegisters = 32;
#endif
};

}  // namespace HEED_ISA
}  // namespace heed
