// Products of whole numbers. blocks.h includes this file once for each way in which the instruction set multiplies:
// HEED_BYTES is its struct in simd/, HEED_BYTES_TARGET the attribute of functions that use it. A step of a product
// takes four bytes of a row and four of each column: four numbers of a byte, or two of 16 bits.

namespace heed {
namespace HEED_ISA {

// Some rows of y = x W for some vectors of columns, from column `at` of the panel on. Each step of weights prefetches
// kAhead cache lines from `ahead` on; if that is as many as it has, each block prefetches the lines of its factors too.
template <class Steps, int kOffset, int kRows, int kVectors, int kAhead>
HEED_BYTES_TARGET inline void block_tile(HEED_BYTES, Matrix x, const char* weights, int columns,
                                         const BlockRange& range, int at, Matrix y, const char* ahead) {
  typedef Integers<float> I;
  typedef Vector<float> V;
  typedef RowBlock<typename Steps::Number> Row;
  constexpr int kFour = 4 * kLanes<float>;  // bytes of a vector
  for (int b = range.begin; b < range.end; ++b) {
    I sum[kRows][kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v)
        sum[r][v] = HEED_BYTES::begin(kOffset == 0 ? 0 : -kOffset * reinterpret_cast<const Row*>(x.room(r))[b].sum);
    const char* from = weights + kStep * at;
    for (int step = 0; step < Steps::kSteps; step += Steps::kTogether, from += kStep * columns) {
      I w[kVectors][Steps::kTogether];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) Steps::split(load_as<I>(from + v * kFour), w[v]);
      if constexpr (kAhead > 0) {
#pragma GCC unroll 8
        for (int i = 0; i < kAhead; ++i) __builtin_prefetch(ahead + i * 64);
        ahead += kAhead * 64;
      }
#pragma GCC unroll 2
      for (int j = 0; j < Steps::kTogether; ++j)
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const char* whole = reinterpret_cast<const char*>(reinterpret_cast<const Row*>(x.room(r)) + b);
          const I four = I{} + load_as<int32_t>(whole + 4 * (step + j));
#pragma GCC unroll 8
          for (int v = 0; v < kVectors; ++v) sum[r][v] = HEED_BYTES::add_products(sum[r][v], four, w[v][j]);
        }
    }
    constexpr int kFactors = 2 * kVectors * kLanes<float>;  // bytes, which follow the steps
    if constexpr (kAhead == kVectors * kFour / 64) {
      for (int i = 0; i < kFactors; i += 64) __builtin_prefetch(ahead + i);
      ahead += kFactors;
    }
    weights += int64_t{columns} * Steps::kBytes;
    V factor[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) factor[v] = block_factors(weights - 2 * columns + 2 * at + v * kFour / 2);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Row& row = reinterpret_cast<const Row*>(x.room(r))[b];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        float* to = y[r] + v * kLanes<float>;
        const I whole = HEED_BYTES::end(sum[r][v], kOffset == 0 ? 0 : -kOffset * row.sum);
        const V before = b == 0 ? V{} : load(to);
        const V total = before + __builtin_convertvector(whole, V) * (factor[v] * row.factor);
        store(to, b + 1 < range.count ? total : total * load(range.factor + v * kLanes<float>));
      }
    }
  }
}

// All rows for some vectors of columns; `next` is what to prefetch.
template <class Steps, int kOffset, int kVectors, bool kPrefetch>
HEED_BYTES_TARGET inline void block_rows(HEED_BYTES bytes, Matrix x, int rows, const char* weights, int columns,
                                         const BlockRange& range, int at, Matrix y, const char* next) {
  constexpr int kLines = kPrefetch ? kVectors * 4 * kLanes<float> / 64 : 0;  // of the weights of a step
  constexpr int kLoads = Steps::kSteps / Steps::kTogether;
  panel_tiles<kLines>(rows, [&](int first, auto count, auto lines, int done) {
    block_tile<Steps, kOffset, decltype(count)::value, kVectors, decltype(lines)::value>(
        bytes, x.from(first), weights, columns, range, at, y.from(first),
        next + int64_t{done} * range.count * kLoads * 64);
  });
}

}  // namespace HEED_ISA
}  // namespace heed

#undef HEED_BYTES
#undef HEED_BYTES_TARGET
