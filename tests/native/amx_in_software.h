// AMX's tiles without its matrix units: the kernels of `amx` then run on every processor with AVX-512. Slow, and for
// tests alone (-DHEED_AMX_IN_SOFTWARE=ON). Rounds as the processor does, after Intel's "Software Developer's Manual",
// volume 2, TDPBF16PS: subnormal numbers count as 0, and even and odd products have a sum each until the end. Unlike
// the units', its reads and writes are seen by ASan.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define HEED_AMX_IN_SOFTWARE 1

namespace tiles_in_software {

constexpr int kTiles = 8, kMostRows = 16, kMostBytes = 64;

// The registers of one thread. A palette of 0 means that they are not configured: any use is then a fault.
struct Tiles {
  uint8_t palette = 0;
  uint8_t rows[kTiles] = {};
  uint16_t bytes[kTiles] = {};
  alignas(64) char data[kTiles][kMostRows][kMostBytes] = {};
};
static thread_local Tiles tiles;

inline void require(bool is_right, const char* what) {
  if (is_right) return;
  std::fprintf(stderr, "AMX in software: %s\n", what);
  std::abort();
}

inline void configure(const void* config) {
  const auto* bytes = static_cast<const uint8_t*>(config);
  tiles.palette = bytes[0];
  require(tiles.palette == 1, "the palette is not 1");
  for (int t = 0; t < kTiles; ++t) {
    std::memcpy(&tiles.bytes[t], bytes + 16 + 2 * t, 2);
    tiles.rows[t] = bytes[48 + t];
    require(tiles.rows[t] <= kMostRows && tiles.bytes[t] <= kMostBytes, "a tile of more than 16 rows of 64 bytes");
  }
  std::memset(tiles.data, 0, sizeof tiles.data);
}

inline void release() { tiles = Tiles(); }

inline void zero(int t) {
  require(tiles.palette == 1, "the tiles are not configured");
  std::memset(tiles.data[t], 0, sizeof tiles.data[t]);
}

inline void load(int t, const void* from, ptrdiff_t row_stride) {
  zero(t);
  for (int r = 0; r < tiles.rows[t]; ++r)
    std::memcpy(tiles.data[t][r], static_cast<const char*>(from) + r * row_stride, tiles.bytes[t]);
}

inline void store(int t, void* to, ptrdiff_t row_stride) {
  require(tiles.palette == 1, "the tiles are not configured");
  for (int r = 0; r < tiles.rows[t]; ++r)
    std::memcpy(static_cast<char*>(to) + r * row_stride, tiles.data[t][r], tiles.bytes[t]);
}

inline float without_subnormals(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }

inline float widened(uint16_t bfloat16) {
  const uint32_t bits = uint32_t{bfloat16} << 16;
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return without_subnormals(x);
}

// c += a * b, where a row of `a` holds the pairs that meet the rows of `b`.
inline void multiply(int c, int a, int b) {
  require(tiles.palette == 1, "the tiles are not configured");
  const int columns = tiles.bytes[c] / 4, pairs = tiles.bytes[a] / 4;
  require(tiles.rows[c] == tiles.rows[a] && tiles.bytes[c] == tiles.bytes[b] && tiles.rows[b] == pairs,
          "the shapes of a product's tiles differ");
  for (int r = 0; r < tiles.rows[c]; ++r) {
    float sums[kMostBytes / 4][2] = {};
    for (int k = 0; k < pairs; ++k) {
      uint16_t left[2];
      std::memcpy(left, tiles.data[a][r] + 4 * k, sizeof left);
      for (int x = 0; x < columns; ++x) {
        uint16_t right[2];
        std::memcpy(right, tiles.data[b][k] + 4 * x, sizeof right);
        for (int half = 0; half < 2; ++half)
          sums[x][half] = without_subnormals(std::fma(widened(left[half]), widened(right[half]), sums[x][half]));
      }
    }
    for (int x = 0; x < columns; ++x) {
      float sum;
      std::memcpy(&sum, tiles.data[c][r] + 4 * x, sizeof sum);
      sum = without_subnormals(without_subnormals(sum) + without_subnormals(sums[x][0] + sums[x][1]));
      std::memcpy(tiles.data[c][r] + 4 * x, &sum, sizeof sum);
    }
  }
}

}  // namespace tiles_in_software

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig tiles_in_software::configure
#define _tile_release tiles_in_software::release
#define _tile_zero tiles_in_software::zero
#define _tile_loadd tiles_in_software::load
#define _tile_stored tiles_in_software::store
#define _tile_dpbf16ps tiles_in_software::multiply
