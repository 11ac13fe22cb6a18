// The matrix units of AMX: a product of tiles is an instruction.
#pragma once

#include <immintrin.h>

#include "tiles.h"

namespace heed {
namespace HEED_ISA {

// Configures the tile registers during its lifetime: all eight have 16 rows of 64 bytes.
class MatrixUnit {
 public:
  MatrixUnit() {
    struct alignas(64) {
      uint8_t palette, start, reserved[14];
      uint16_t bytes[16];
      uint8_t rows[16];
    } config = {};
    config.palette = 1;
    for (int t = 0; t < 8; ++t) config.bytes[t] = 64, config.rows[t] = kTile;
    _tile_loadconfig(&config);
  }
  ~MatrixUnit() { _tile_release(); }

  // See tiles.h.
  static bool is_faster(const HeedAttention& a) { return a.query_length > kTile; }
  static void product(const TileOperand& a, int rows, const TileOperand& b, void* c, ptrdiff_t c_row, int columns,
                      int steps, bool accumulate) {
    if (steps == 2 && !accumulate) return two_step_product(a, rows, b, c, c_row, columns);
    in_chunks<2>(rows / kTile, [&](int y, auto down) {
      in_chunks<2>(columns / kTile, [&](int x, auto across) {
        tile_product<decltype(down)::value, decltype(across)::value>(a, y, b, x, c, c_row, steps, accumulate);
      });
    });
  }

 private:
  // The product of 16 * kDown rows from tile `y` on and 16 * kAcross columns from tile `x` on.
  template <int kDown, int kAcross>
  static inline void tile_product(const TileOperand& a, int y, const TileOperand& b, int x, void* c, ptrdiff_t c_row,
                                  int steps, bool accumulate) {
    char* to = static_cast<char*>(c) + y * kTile * c_row + 64 * x;
    if (accumulate) {
      _tile_loadd(0, to, c_row);
      if (kAcross > 1) _tile_loadd(1, to + 64, c_row);
      if (kDown > 1) _tile_loadd(2, to + kTile * c_row, c_row);
      if (kDown > 1 && kAcross > 1) _tile_loadd(3, to + kTile * c_row + 64, c_row);
    } else {
      _tile_zero(0);
      if (kAcross > 1) _tile_zero(1);
      if (kDown > 1) _tile_zero(2);
      if (kDown > 1 && kAcross > 1) _tile_zero(3);
    }
    const char *left = a.tile(y), *right = b.tile(x);
    for (int step = 0; step < steps; ++step, left += a.step, right += b.step) {
      _tile_loadd(4, left, a.row);
      _tile_loadd(6, right, b.row);
      _tile_dpbf16ps(0, 4, 6);
      if (kAcross > 1) {
        _tile_loadd(7, right + b.next, b.row);
        _tile_dpbf16ps(1, 4, 7);
      }
      if (kDown > 1) {
        _tile_loadd(5, left + a.next, a.row);
        _tile_dpbf16ps(2, 5, 6);
        if (kAcross > 1) _tile_dpbf16ps(3, 5, 7);
      }
    }
    _tile_stored(0, to, c_row);
    if (kAcross > 1) _tile_stored(1, to + 64, c_row);
    if (kDown > 1) _tile_stored(2, to + kTile * c_row, c_row);
    if (kDown > 1 && kAcross > 1) _tile_stored(3, to + kTile * c_row + 64, c_row);
  }

  // The same without `accumulate` for two steps, as 64 features are: four tiles of B stay in registers, which halves
  // the loads.
  static inline void two_step_product(const TileOperand& a, int rows, const TileOperand& b, void* c, ptrdiff_t c_row,
                                      int columns) {
    int x = 0;
    for (; x + 2 <= columns / kTile; x += 2) {
      const char *right = b.tile(x), *next = b.tile(x + 1);
      _tile_loadd(4, right, b.row);
      _tile_loadd(5, next, b.row);
      _tile_loadd(6, right + b.step, b.row);
      _tile_loadd(7, next + b.step, b.row);
      char* to = static_cast<char*>(c) + 64 * x;
      for (int y = 0; y < rows / kTile; ++y, to += kTile * c_row) {
        const char* left = a.tile(y);
        _tile_loadd(2, left, a.row);
        _tile_loadd(3, left + a.step, a.row);
        _tile_zero(0);
        _tile_zero(1);
        _tile_dpbf16ps(0, 2, 4);
        _tile_dpbf16ps(1, 2, 5);
        _tile_dpbf16ps(0, 3, 6);
        _tile_dpbf16ps(1, 3, 7);
        _tile_stored(0, to, c_row);
        _tile_stored(1, to + 64, c_row);
      }
    }
    if (x < columns / kTile)
      for (int y = 0; y < rows / kTile; ++y) tile_product<1, 1>(a, y, b, x, c, c_row, 2, false);
  }
};

}  // namespace HEED_ISA
}  // namespace heed
