// Tiles by AVX512_BF16: an instruction adds the products of 16 pairs of bfloat16 to 16 sums, two for each pair.
#pragma once

#include <immintrin.h>

#include "tiles.h"

namespace heed {
namespace HEED_ISA {

class DotUnit {
 public:
  // See tiles.h. Measured on Zen 4: with one block of keys, equal at 56 queries.
  static bool is_faster(const HeedAttention& a) {
    return a.query_length > (a.key_length > kKeyBlock ? kTile : 3 * kTile);
  }
  static void product(const TileOperand& a, int rows, const TileOperand& b, void* c, ptrdiff_t c_row, int columns,
                      int steps, bool accumulate) {
    in_chunks<4>(columns / kTile, [&](int x, auto across) {
      // 16 sums: enough to hide the latency of an instruction, and few enough loads for each.
      constexpr int kAcross = decltype(across)::value, kDown = 16 / kAcross;
      for (int r = 0; r < rows; r += kDown) {
        const char* left = a.tile(r / kTile) + r % kTile * a.row;
        char* to = static_cast<char*>(c) + r * c_row + 64 * x;
        sums<kDown, kAcross>(left, a, b, x, to, c_row, steps, accumulate);
      }
    });
  }

 private:
  template <int kDown, int kAcross>
  static HEED_INLINE void sums(const char* left, const TileOperand& a, const TileOperand& b, int x, char* c,
                               ptrdiff_t c_row, int steps, bool accumulate) {
    Vector<float> sum[kDown][kAcross];
#pragma GCC unroll 16
    for (int r = 0; r < kDown; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < kAcross; ++v) sum[r][v] = Vector<float>{};
    const char* right = b.tile(x);
    for (int step = 0; step < steps; ++step, left += a.step, right += b.step)
#pragma GCC unroll 2
      for (int k = 0; k < kTile; ++k) {
        Words pairs[kAcross];
#pragma GCC unroll 4
        for (int v = 0; v < kAcross; ++v) pairs[v] = load_as<Words>(right + k * b.row + v * b.next);
#pragma GCC unroll 16
        for (int r = 0; r < kDown; ++r) {
          const Words pair = Words{} + load_as<uint32_t>(left + r * a.row + 4 * k);
#pragma GCC unroll 4
          for (int v = 0; v < kAcross; ++v) sum[r][v] = _mm512_dpbf16_ps(sum[r][v], (__m512bh)pair, (__m512bh)pairs[v]);
        }
      }
    store_sums<float>(sum, reinterpret_cast<float*>(c), c_row / static_cast<ptrdiff_t>(sizeof(float)), accumulate);
  }
};

}  // namespace HEED_ISA
}  // namespace heed
