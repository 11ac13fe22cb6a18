// The kernels for AArch64.
#if defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__linux__)
#include <sys/auxv.h>
#endif

#define HEED_ISA neon
#define HEED_SIMD "neon.h"
#define HEED_SUPPORTED true
#include "decoder/table.h"

namespace heed {
namespace neon {

// Asked once, when the library is loaded: ARMv8.2 has these instructions as an option, and from ARMv8.4 on they are
// always there.
const bool kDotProducts = [] {
#if defined(__APPLE__)
  int there = 0;
  size_t size = sizeof(there);
  return sysctlbyname("hw.optional.arm.FEAT_DotProd", &there, &size, nullptr, 0) == 0 && there != 0;
#elif defined(__linux__)
  constexpr unsigned long kAsimdDotProducts = 1ul << 20;
  return (getauxval(AT_HWCAP) & kAsimdDotProducts) != 0;
#else
  return false;
#endif
}();

}  // namespace neon
}  // namespace heed

// The table comes last.
#include "kernels/table.h"
