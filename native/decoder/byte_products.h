// int8 products by bytes. integers.h includes this file once for each way in which the instruction set multiplies
// bytes: HEED_BYTES is its struct in simd/, HEED_BYTES_TARGET the attribute of functions that use it.

namespace heed {
namespace HEED_ISA {

// Some rows of y = x W for some vectors of columns; `weights` holds a group of inputs every `columns` columns. Each
// group prefetches kAhead cache lines of the next panel, from `ahead` on.
template <int kRows, int kVectors, int kAhead>
HEED_BYTES_TARGET inline void byte_tile(HEED_BYTES, Matrix x, const int8_t* weights, int columns, int inputs,
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
      for (int v = 0; v < kVectors; ++v) sum[r][v] = HEED_BYTES::add_products(sum[r][v], four, w[v]);
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
HEED_BYTES_TARGET inline void byte_rows(HEED_BYTES bytes, Matrix x, int rows, const int8_t* weights, int columns,
                                        int inputs, const int32_t* offset, const float* factor, Matrix y) {
  constexpr int kLines = kVectors > 1 ? kVectors * kGroup * kLanes<float> / 64 : 0;  // of a group of inputs
  const int64_t groups = (inputs + kGroup - 1) / kGroup;
  const char* next = reinterpret_cast<const char*>(weights) + groups * kGroup * columns;
  panel_tiles<kLines>(rows, [&](int first, auto count, auto lines, int done) {
    byte_tile<decltype(count)::value, kVectors, decltype(lines)::value>(
        bytes, x.from(first), weights, columns, inputs, offset, factor, y.from(first), next + done * groups * 64);
  });
}

// y = x W for one panel, from rows of bytes.
HEED_BYTES_TARGET inline void byte_product(HEED_BYTES bytes, const PackedDense& dense, int first, Matrix x, int rows,
                                           Matrix y, int columns) {
  constexpr int kWide = kPanel / kLanes<float>;
  const int8_t* weights =
      reinterpret_cast<const int8_t*>(dense.weight) + first * static_cast<int64_t>(round_up(dense.inputs, kGroup));
  const int32_t* offset = dense.offset + first;
  const float* factor = dense.factor + first;
  if (columns == kPanel) return byte_rows<kWide>(bytes, x, rows, weights, columns, dense.inputs, offset, factor, y);
  for (int c = 0; c < columns; c += kLanes<float>)
    byte_rows<1>(bytes, x, rows, weights + kGroup * c, columns, dense.inputs, offset + c, factor + c,
                 {y.data + c, y.stride});
}
}  // namespace HEED_ISA
}  // namespace heed

#undef HEED_BYTES
#undef HEED_BYTES_TARGET
