// Multiply-adds of float32 vectors that stay in registers. `benchmarks/register_peak.py` compiles this file for the
// instruction set in use.
#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX2__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif

typedef float Vector __attribute__((vector_size(VECTOR_BYTES)));

// Enough independent sums to hide the latency of a multiply-add, and few enough for the registers.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kSums = 24;
#else
constexpr int kSums = 12;
#endif

extern "C" {

int multiply_adds_of_step() { return kSums * VECTOR_BYTES / 4; }

// The sums converge to 2 * `addend` for a factor of one half, so no number becomes denormal or infinite.
float multiply_add(long steps, float factor, float addend) {
  Vector sums[kSums], factors = factor - Vector{}, addends = addend - Vector{};
  // Different starts: compilers merge equal sums into one.
#pragma GCC unroll 24
  for (int i = 0; i < kSums; ++i) sums[i] = addends + static_cast<float>(i);
  for (long step = 0; step < steps; ++step) {
#pragma GCC unroll 24
    for (int i = 0; i < kSums; ++i) sums[i] = sums[i] * factors + addends;
  }
  Vector total{};
#pragma GCC unroll 24
  for (int i = 0; i < kSums; ++i) total += sums[i];
  return total[0];
}

}  // extern "C"
