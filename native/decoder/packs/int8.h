// Weights as whole numbers in [-127, 127] times a factor for each column; rows are rounded likewise, with a factor for
// each row. Sums are exact, so every instruction gives the same ones.
//
// The weights of inputs 4 k .. 4 k + 3 of a column are adjacent, as byte instructions need them; inputs are padded with
// zeros.
#pragma once

#include "panels.h"

namespace heed {
namespace HEED_ISA {

inline constexpr int kGroup = 4;  // inputs whose weights of a column are adjacent

// Calls use(bytes) with the struct of simd/ that multiplies bytes on this machine. False: it has none.
template <class Use>
inline bool with_bytes([[maybe_unused]] const Use& use) {
#ifdef HEED_DOT_BYTES
  if (DotBytes::supported()) return use(DotBytes{}), true;
#endif
#ifdef HEED_PAIR_BYTES
  return use(PairBytes{}), true;
#else
  return false;
#endif
}

// What is added to the bytes of rows, from -127 to 127: some instructions take them unsigned.
inline int byte_bias() {
  int bias = 0;
  with_bytes([&](auto bytes) { bias = decltype(bytes)::kBias; });
  return bias;
}

// The int8 form of a row, in its room: a factor, and after a vector whole numbers in one of the forms of `RowForm`.
HEED_INLINE float* row_factor(Matrix x, int64_t row) { return x.room(row); }
HEED_INLINE float* whole_row(Matrix x, int64_t row) { return x.room(row) + kLanes<float>; }

// How a row's whole numbers are stored: as float, as 16 bits, the second and third of each group of four exchanged, or
// plus byte_bias() as bytes.
enum class RowForm { kFloats, kWords, kBytes };

// The form for so many rows.
inline RowForm row_form([[maybe_unused]] int rows) {
#ifdef HEED_PAIR_BYTES
  if (rows >= kWordRows && byte_bias() == PairBytes::kBias) return RowForm::kWords;
#endif
  return with_bytes([](auto) {}) ? RowForm::kBytes : RowForm::kFloats;
}

inline void store_words(char* to, Words whole) {
  typedef uint64_t Groups __attribute__((vector_size(HEED_VECTOR_BYTES / 2)));
  store_halves(to, whole);
  const Groups x = load_as<Groups>(to);
  store(to, (x & 0xffff00000000ffffu) | (x & 0xffff0000u) << 16 | (x >> 16 & 0xffff0000u));
}

// Rounds a row to whole numbers in [-127, 127].
inline void round_row(Matrix x, int row, int count, RowForm form) {
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
  *row_factor(x, row) = is_nan != 0 ? is_nan : magnitude / 127;
  float* to = whole_row(x, row);
  char* bytes = reinterpret_cast<char*>(to);
  const Words bias = Words{} - (Words)broadcast(kRounder) + static_cast<uint32_t>(byte_bias());
  for (int c = 0; c < count; c += kLanes<float>) {
    const V scaled = is_zero ? V{} : load_some(from + c, count - c) * inverse, whole = scaled + kRounder;
    if (form == RowForm::kBytes)
      Simd::store_bytes(bytes + c, (Words)whole + bias);
    else if (form == RowForm::kWords)
      store_words(bytes + 2 * c, (Words)whole - (Words)broadcast(kRounder));
    else
      store(to + c, whole - kRounder);
  }
}

// A layer's panels, and after them a factor and an offset for each column: the offset is minus byte_bias() times the
// sum of its weights.
struct Int8Columns {
  int depth;  // inputs, padded to whole groups
  int8_t* weights;
  float* factor;
  int32_t* offset;

  explicit Int8Columns(const PackedDense& dense)
      : depth(static_cast<int>(round_up(dense.inputs, kGroup))),
        weights(reinterpret_cast<int8_t*>(dense.weight)),
        factor(reinterpret_cast<float*>(weights + depth * row_numbers(dense.outputs))),
        offset(reinterpret_cast<int32_t*>(factor + row_numbers(dense.outputs))) {}

  static int64_t bytes(int64_t inputs, int64_t columns) {
    return columns * (round_up(inputs, kGroup) + static_cast<int64_t>(sizeof(float) + sizeof(int32_t)));
  }

  const int8_t* panel(int first) const { return weights + int64_t{first} * depth; }
};

// Some steps of a product, [begin, end) of `count`: sums begin with the offset of each column, wait as integers in the
// memory of y for the steps that follow, and are multiplied by the factors of column and row after the last.
struct Steps {
  int begin, end, count;
  const int32_t* offset;
  const float* factor;

  HEED_INLINE Steps of_columns(int c) const { return {begin, end, count, offset + c, factor + c}; }
};

}  // namespace HEED_ISA
}  // namespace heed

#ifdef HEED_DOT_BYTES
#define HEED_BYTES DotBytes
#define HEED_BYTES_TARGET HEED_DOT_BYTES
#include "byte_products.h"
#endif
#ifdef HEED_PAIR_BYTES
#define HEED_BYTES PairBytes
#define HEED_BYTES_TARGET
#include "byte_products.h"
#define HEED_BYTES PairWords
#define HEED_BYTES_TARGET
#include "byte_products.h"
#endif

namespace heed {
namespace HEED_ISA {

#if defined(HEED_DOT_BYTES) || defined(HEED_PAIR_BYTES)
// Some steps of y = x W for one panel; with kPrefetch, the next panel is at `next`.
template <bool kPrefetch, class Bytes>
inline void byte_panel(Bytes bytes, Matrix x, int rows, const int8_t* weights, const Steps& steps, Matrix y,
                       int columns, const char* next) {
  if (columns == kPanel)
    return byte_rows<kPanel / kLanes<float>, kPrefetch>(bytes, x, rows, weights, columns, steps, y, next);
  for (int c = 0; c < columns; c += kLanes<float>)
    byte_rows<1, false>(bytes, x, rows, weights + 4 * c, columns, steps.of_columns(c), {y.data + c, y.stride}, next);
}

// y = x W for one panel, from rows of bytes.
inline void byte_product(const Int8Columns& dense, int first, Matrix x, int rows, Matrix y, int columns) {
  const int steps = dense.depth / kGroup;
  const int8_t* weights = dense.panel(first);
  const char* next = reinterpret_cast<const char*>(weights) + int64_t{steps} * kGroup * columns;
  const Steps all{0, steps, steps, dense.offset + first, dense.factor + first};
  with_bytes([&](auto bytes) { byte_panel<true>(bytes, x, rows, weights, all, y, columns, next); });
}

#endif

#ifdef HEED_PAIR_BYTES
// The same from rows of 16 bits. Weights are widened a few inputs at a time: they stay in the first-level cache.
inline void word_product(const Int8Columns& dense, int first, Matrix x, int rows, Matrix y, int columns) {
  typedef int16_t Shorts __attribute__((vector_size(HEED_VECTOR_BYTES)));
  constexpr int kInputs = 256;
  const int inputs = dense.depth;
  const int8_t* from = dense.panel(first);
  alignas(64) int32_t wide[kInputs / 2 * kPanel];  // two inputs of each column
  for (int k = 0; k < inputs; k += kInputs) {
    const int end = static_cast<int>(min(k + kInputs, inputs));
    int32_t* to = wide;
    for (int i = k; i < end; i += kGroup, to += 2 * columns)
      for (int c = 0; c < columns; c += kLanes<float>, from += kGroup * kLanes<float>) {
        const Shorts pairs = load_as<Shorts>(from);  // of inputs: first and third, second and fourth
        store(to + c, pairs << 8 >> 8);
        store(to + columns + c, pairs >> 8);
      }
    byte_panel<false>(PairWords{}, x, rows, reinterpret_cast<const int8_t*>(wide),
                      {k / 2, end / 2, inputs / 2, dense.offset + first, dense.factor + first}, y, columns, nullptr);
  }
}
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
inline void whole_product(const Int8Columns& dense, int first, Matrix x, int rows, Matrix y, int columns) {
  constexpr int kRows = 32, kExact = 1024;  // kExact 127^2 < 2^24
  const int inputs = dense.depth;
  const int8_t* weights = dense.panel(first);
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
        product<float>({whole_row(x, at) + k, x.stride, 1}, some, wide, columns, part, columns, columns, depth,
                       k > from);
      }
      k = end;
      for (int i = 0; i < some * columns; i += kLanes<float>)
        store(sums + i, load_as<Integers<float>>(sums + i) + __builtin_convertvector(load(part + i), Integers<float>));
    }
    for (int r = 0; r < some; ++r)
      for (int c = 0; c < columns; c += kLanes<float>)
        store(y[at + r] + c, __builtin_convertvector(load_as<Integers<float>>(sums + r * columns + c), Vector<float>) *
                                 (load(dense.factor + first + c) * *row_factor(x, at + r)));
  }
}

template <>
struct Pack<HEED_PACK_INT8> {
  Int8Columns dense;
  Matrix x;
  int rows;
  RowForm form;

  static int64_t bytes(int64_t inputs, int64_t columns) { return Int8Columns::bytes(inputs, columns); }

  // The factor is NaN if a weight is not finite, so that results are NaN, too.
  static void pack_column(const float* from, int64_t step, const PackedDense& to, int64_t column) {
    const Int8Columns packed(to);
    const PanelColumn at(to, column);
    float largest = 0, nonfinite = 0;
    for (int64_t k = 0; k < to.inputs; ++k) {
      const float magnitude = __builtin_fabsf(from[k * step]);
      largest = magnitude > largest ? magnitude : largest;
      nonfinite += magnitude - magnitude;
    }
    const float factor = packed.factor[column] = nonfinite != 0 ? nonfinite : largest / 127;
    if (!(factor > 0)) return;
    int8_t* weights = packed.weights + at.begin * packed.depth + at.place * kGroup;
    const int bias = byte_bias();
    int32_t& offset = packed.offset[column];
    for (int64_t k = 0; k < to.inputs; ++k) {
      const float x = __builtin_rintf(from[k * step] / factor);
      const int8_t weight = static_cast<int8_t>(x > 127 ? 127 : x < -127 ? -127 : x);
      weights[k / kGroup * kGroup * at.columns + k % kGroup] = weight;
      offset -= bias * weight;
    }
  }

  Pack(const PackedDense& d, Matrix from, int count) : dense(d), x(from), rows(count), form(row_form(count)) {
    for (int r = 0; r < rows; ++r) round_row(x, r, d.inputs, form);
  }

  void multiply(int first, Matrix y, int columns) const {
#ifdef HEED_PAIR_BYTES
    if (form == RowForm::kWords) return word_product(dense, first, x, rows, y, columns);
#endif
#if defined(HEED_DOT_BYTES) || defined(HEED_PAIR_BYTES)
    if (form == RowForm::kBytes) return byte_product(dense, first, x, rows, y, columns);
#endif
    whole_product(dense, first, x, rows, y, columns);
  }
};

}  // namespace HEED_ISA
}  // namespace heed
