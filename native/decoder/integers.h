// int8 products: rows are rounded to int8 with a factor for each row, as weights are with a factor for each column.
// Sums are exact, so every instruction gives the same ones.
#pragma once

#include "weights.h"

namespace heed {
namespace HEED_ISA {

// Rows of numbers, `stride` apart. The second half of each row is room for its int8 form, see `round_row`.
struct Matrix {
  float* data;
  ptrdiff_t stride;

  HEED_INLINE float* operator[](int64_t row) const { return data + row * stride; }
  HEED_INLINE Matrix from(int64_t row) const { return {data + row * stride, stride}; }
  // The int8 form: whole numbers as float, or plus Simd::kByteBias as bytes; and its factor, in a vector before them.
  HEED_INLINE float* int8_row(int64_t row) const { return data + row * stride + stride / 2 + kLanes<float>; }
  HEED_INLINE float* factor(int64_t row) const { return int8_row(row) - kLanes<float>; }

  static int64_t stride_of(int64_t numbers) { return 2 * (row_numbers(numbers) + kLanes<float>); }
};

// Rounds a row to whole numbers in [-127, 127].
inline void round_row(Matrix x, int row, int count, bool as_bytes) {
  typedef Vector<float> V;
  const float* from = x[row];
  V lane_max{}, nonfinite{};
  for (int c = 0; c < count; c += kLanes<float>) {
    const V v = load_some(from + c, count - c);
    lane_max = larger(v < 0 ? -v : v, lane_max);
    nonfinite += v - v;
  }
  float magnitude = 0;
  for (int lane = 0; lane < kLanes<float>; ++lane) magnitude = lane_max[lane] > magnitude ? lane_max[lane] : magnitude;
  const float is_nan = sum_of_lanes<float>(nonfinite);  // or 0
  const bool is_zero = magnitude == 0 || is_nan != 0;
  const float inverse = is_zero ? 0 : 127 / magnitude;
  *x.factor(row) = is_nan != 0 ? is_nan : magnitude / 127;
  float* to = x.int8_row(row);
  uint8_t* bytes = reinterpret_cast<uint8_t*>(to);
  for (int c = 0; c < count; c += kLanes<float>) {
    const V scaled = is_zero ? V{} : load_some(from + c, count - c) * inverse, whole = scaled + kRounder;
    if (as_bytes)
      Simd::store_bytes(bytes + c, (Words)whole - (Words)broadcast(kRounder) + Simd::kByteBias);
    else
      store(to + c, whole - kRounder);
  }
}

#ifdef HEED_BYTE_PRODUCTS
// Some rows of y = x W for some vectors of columns; `weights` holds a group of inputs every `columns` columns. Each
// group prefetches kAhead cache lines of the next panel, from `ahead` on.
template <int kRows, int kVectors, int kAhead>
HEED_BYTE_PRODUCTS inline void byte_tile(Matrix x, const int8_t* weights, int columns, int inputs,
                                         const int32_t* offset, const float* factor, Matrix y, const char* ahead) {
  typedef Integers<float> I;
  I sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sum[r][v] = load_as<I>(offset + v * kLanes<float>);
  for (int k = 0; k < inputs; k += kGroup, weights += kGroup * columns) {
    I w[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) w[v] = load_as<I>(weights + v * kGroup * kLanes<float>);
    if constexpr (kAhead > 0) {
#pragma GCC unroll 8
      for (int i = 0; i < kAhead; ++i) __builtin_prefetch(ahead + i * 64);
      ahead += kAhead * 64;
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const I four = load_as<int32_t>(reinterpret_cast<const uint8_t*>(x.int8_row(r)) + k) - I{};
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sum[r][v] = Simd::add_byte_products(sum[r][v], four, w[v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v)
      store(y[r] + v * kLanes<float>,
            __builtin_convertvector(sum[r][v], Vector<float>) * (load(factor + v * kLanes<float>) * *x.factor(r)));
}

// All rows for some vectors of columns.
template <int kVectors>
HEED_BYTE_PRODUCTS inline void byte_rows(Matrix x, int rows, const int8_t* weights, int columns, int inputs,
                                         const int32_t* offset, const float* factor, Matrix y) {
  constexpr int kLines = kVectors > 1 ? kVectors * kGroup * kLanes<float> / 64 : 0;  // of a group of inputs
  const int64_t groups = (inputs + kGroup - 1) / kGroup;
  const char* next = reinterpret_cast<const char*>(weights) + groups * kGroup * columns;
  panel_tiles<kLines>(rows, [&](int first, auto count, auto lines, int done) {
    byte_tile<decltype(count)::value, kVectors, decltype(lines)::value>(
        x.from(first), weights, columns, inputs, offset, factor, y.from(first), next + done * groups * 64);
  });
}

// y = x W for one panel, from rows of bytes.
HEED_BYTE_PRODUCTS inline void byte_product(const PackedDense& dense, int first, Matrix x, int rows, Matrix y,
                                            int columns) {
  constexpr int kWide = kPanel / kLanes<float>;
  const int8_t* weights =
      reinterpret_cast<const int8_t*>(dense.weight) + first * static_cast<int64_t>(round_up(dense.inputs, kGroup));
  const int32_t* offset = dense.offset + first;
  const float* factor = dense.factor + first;
  if (columns == kPanel) return byte_rows<kWide>(x, rows, weights, columns, dense.inputs, offset, factor, y);
  for (int c = 0; c < columns; c += kLanes<float>)
    byte_rows<1>(x, rows, weights + kGroup * c, columns, dense.inputs, offset + c, factor + c, {y.data + c, y.stride});
}
#else
inline void byte_product(const PackedDense&, int, Matrix, int, Matrix, int) {}
#endif

// Converts int8 weights of some inputs, whole groups, to float: [input][column].
inline void widen_panel(const int8_t* from, int inputs, int columns, float* to) {
  typedef Integers<float> I;
  for (int k = 0; k < inputs; k += kGroup)
    for (int c = 0; c < columns; c += kLanes<float>) {
      const I four = load_as<I>(from + (k * columns + kGroup * c));
#pragma GCC unroll 4
      for (int i = 0; i < kGroup; ++i)
        store(to + (k + i) * columns + c,
              __builtin_convertvector((I)((Words)four << (24 - 8 * i)) >> 24, Vector<float>));
    }
}

// The same in float: sums of so few products of whole numbers are exact.
inline void whole_product(const PackedDense& dense, int first, Matrix x, int rows, Matrix y, int columns) {
  constexpr int kRows = 32, kExact = 1024;  // kExact 127^2 < 2^24
  const int inputs = round_up(dense.inputs, kGroup);
  const int8_t* weights = reinterpret_cast<const int8_t*>(dense.weight) + static_cast<int64_t>(first) * inputs;
  alignas(64) float wide[kDepth * kPanel], part[kRows * kPanel];
  alignas(64) int32_t sums[kRows * kPanel];
  for (int at = 0; at < rows; at += kRows) {
    const int some = static_cast<int>(min(kRows, rows - at));
    for (int i = 0; i < some * columns; ++i) sums[i] = 0;
    for (int k = 0; k < inputs;) {
      const int end = static_cast<int>(min(k + kExact, inputs));
      for (int from = k; k < end; k += kDepth) {
        const int depth = static_cast<int>(min(kDepth, end - k));
        widen_panel(weights + static_cast<int64_t>(k) * columns, depth, columns, wide);
        product<float>({x.int8_row(at) + k, x.stride, 1}, some, wide, columns, part, columns, columns, depth, k > from);
      }
      k = end;
      for (int i = 0; i < some * columns; i += kLanes<float>)
        store(sums + i, load_as<Integers<float>>(sums + i) + __builtin_convertvector(load(part + i), Integers<float>));
    }
    for (int r = 0; r < some; ++r)
      for (int c = 0; c < columns; c += kLanes<float>)
        store(y[at + r] + c, __builtin_convertvector(load_as<Integers<float>>(sums + r * columns + c), Vector<float>) *
                                 (load(dense.factor + first + c) * *x.factor(at + r)));
  }
}

}  // namespace HEED_ISA
}  // namespace heed
