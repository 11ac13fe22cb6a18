// int8 products. int8.h includes this file once for each way in which the instruction set multiplies: HEED_BYTES is
// its struct in simd/, HEED_BYTES_TARGET the attribute of functions that use it. A step of a product takes four bytes
// of a row and four of each column: four numbers of a byte, or two of 16 bits.

namespace heed {
namespace HEED_ISA {

// Some rows of y = x W for some vectors of columns; `weights` holds a step of inputs every 4 `columns` bytes. Each step
// prefetches kAhead cache lines of the next panel, from `ahead` on.
template <int kRows, int kVectors, int kAhead>
HEED_BYTES_TARGET inline void byte_tile(HEED_BYTES, Matrix x, const int8_t* weights, int columns, const Steps& steps,
                                        Matrix y, const char* ahead) {
  typedef Integers<float> I;
  I sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v)
      sum[r][v] =
          steps.begin == 0 ? load_as<I>(steps.offset + v * kLanes<float>) : load_as<I>(y[r] + v * kLanes<float>);
  for (int step = steps.begin; step < steps.end; ++step, weights += 4 * columns) {
    I w[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) w[v] = load_as<I>(weights + v * 4 * kLanes<float>);
    if constexpr (kAhead > 0) {
#pragma GCC unroll 8
      for (int i = 0; i < kAhead; ++i) __builtin_prefetch(ahead + i * 64);
      ahead += kAhead * 64;
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const I four = load_as<int32_t>(whole_row(x, r) + step) - I{};
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sum[r][v] = HEED_BYTES::add_products(sum[r][v], four, w[v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      float* to = y[r] + v * kLanes<float>;
      if (steps.end < steps.count)
        store(to, (Vector<float>)sum[r][v]);
      else
        store(to, __builtin_convertvector(sum[r][v], Vector<float>) *
                      (load(steps.factor + v * kLanes<float>) * *row_factor(x, r)));
    }
}

// All rows for some vectors of columns; `next` is what to prefetch.
template <int kVectors, bool kPrefetch>
HEED_BYTES_TARGET inline void byte_rows(HEED_BYTES bytes, Matrix x, int rows, const int8_t* weights, int columns,
                                        const Steps& steps, Matrix y, const char* next) {
  constexpr int kLines = kPrefetch ? kVectors * 4 * kLanes<float> / 64 : 0;  // of a step
  panel_tiles<kLines>(rows, [&](int first, auto count, auto lines, int done) {
    byte_tile<decltype(count)::value, kVectors, decltype(lines)::value>(
        bytes, x.from(first), weights, columns, steps, y.from(first), next + int64_t{done} * steps.count * 64);
  });
}
}  // namespace HEED_ISA
}  // namespace heed

#undef HEED_BYTES
#undef HEED_BYTES_TARGET
