// What the formats of whole numbers in blocks share. A block is 32 inputs of a column: whole numbers of few bits times
// a factor, a float16, and times a factor of the column. Rows are rounded to whole numbers in [-127, 127], with a
// factor for each block. Sums within a block are exact, and those of blocks are added in order: every instruction gives
// the same ones but for the rounding of multiply-adds.
//
// The weights of inputs 4 k .. 4 k + 3 of a column are adjacent, as byte instructions need them: a step. A block of a
// panel holds the steps of all its columns, one step after the other, and then the factors of its columns. Inputs are
// padded to whole blocks: rows have zeros there. Behind the panels are the factors of the columns, and those of inputs.
//
// A channel of which rows hold large numbers, and whose weights make up for it, would take the precision of its block
// on both sides. So inputs whose largest weights are far below the median of their block are divided by a power of two,
// and their weights multiplied by it. Neither the largest number of a block of a row grows by that, nor much that of a
// block of weights.
#pragma once

#include "panels.h"

namespace heed {
namespace HEED_ISA {

// A block of a row, in the room of its matrix. Whole numbers are bytes, words of 16 bits, the second and third of each
// group of four exchanged, or floats.
template <class Number>
struct RowBlock {
  Number whole[kBlock];
  float factor;
  int32_t sum;
};
template <class Number>
HEED_INLINE RowBlock<Number>* row_blocks(Matrix x, int64_t row) {
  static_assert(sizeof(RowBlock<Number>) <= kBlockRoom * sizeof(float), "it must fit the room of a row");
  return reinterpret_cast<RowBlock<Number>*>(x.room(row));
}

// Stores whole numbers given as kRounder + n.
HEED_INLINE void store_whole(int8_t* to, Vector<float> n) { Simd::store_bytes(to, (Words)n); }
HEED_INLINE void store_whole(float* to, Vector<float> n) { store(to, n - kRounder); }
HEED_INLINE void store_whole(int16_t* to, Vector<float> n) {
  typedef uint64_t Groups __attribute__((vector_size(HEED_VECTOR_BYTES / 2)));
  store_halves(to, (Words)n);
  const Groups x = load_as<Groups>(to);
  store(to, (x & 0xffff00000000ffffu) | (x & 0xffff0000u) << 16 | (x >> 16 & 0xffff0000u));
}

// Rounds a row times the factors of the inputs. The factor of a block is NaN if a number is not finite.
template <class Number>
inline void round_row(Matrix x, int row, int count, const float* input_factor) {
  typedef Vector<float> V;
  typedef Integers<float> I;
  constexpr int kVectors = kBlock / kLanes<float>;
  constexpr float kLeast = 1e-34f;  // below, 127 / magnitude would be infinite
  const float* from = x[row];
  RowBlock<Number>* to = row_blocks<Number>(x, row);
  for (int k = 0; k < count; k += kBlock, ++to) {
    V v[kVectors], most{}, nonfinite{};
    for (int i = 0; i < kVectors; ++i) {
      const int at = k + i * kLanes<float>;
      v[i] = at < count ? load_some(from + at, count - at) * load(input_factor + at) : V{};
      most = larger(v[i] < 0 ? -v[i] : v[i], most);
      nonfinite += v[i] - v[i];
    }
    const float magnitude = largest_lane(most), is_nan = sum_of_lanes<float>(nonfinite);  // or 0
    const bool is_zero = !(magnitude > kLeast) || is_nan != 0;
    to->factor = is_nan != 0 ? is_nan : is_zero ? 0 : magnitude / 127;
    const float inverse = is_zero ? 0 : 127 / magnitude;
    I sum{};
    for (int i = 0; i < kVectors; ++i) {
      const V n = (is_zero ? V{} : v[i] * inverse) + kRounder;
      sum += (I)n - (I)broadcast(kRounder);
      store_whole(to->whole + i * kLanes<float>, n);
    }
    to->sum = sum_of_integers(sum);
  }
}

// Calls use(the struct of simd/ that multiplies the bytes of a format here). Returns false if there is none.
template <class Format, class Use>
bool with_bytes([[maybe_unused]] const Use& use) {
#ifdef HEED_DOT_BYTES
  if (DotBytes::supported()) return use(DotBytes{}), true;
#endif
#ifdef HEED_PAIR_BYTES
  if constexpr (Format::kBits == 4)
    use(PairNibbles{});
  else
    use(PairBytes{});
  return true;
#else
  return false;
#endif
}

// A packed layer of a format, which has
//   kBits           of a whole number, 8 or 4
//   kMost           the largest magnitude of one
//   kOffset<Bytes>  what is added to whole numbers to store them, for a struct of simd/ that multiplies them
//   quantise(32 weights, whole numbers)  returns the factor of the block
template <class Format>
struct Blocks {
  static constexpr int kBytes = kBlock * Format::kBits / 8 + 2;  // of a block of a column
  int count;                                                     // of a column
  char* weights;
  float* factor;        // of each column
  float* input_factor;  // of each input, a power of two

  explicit Blocks(const PackedDense& dense)
      : count(blocks_of(dense.inputs)),
        weights(dense.weight),
        factor(reinterpret_cast<float*>(weights + row_numbers(dense.outputs) * count * kBytes)),
        input_factor(factor + row_numbers(dense.outputs)) {}

  static int64_t bytes(int64_t inputs, int64_t columns) {
    const int64_t blocks = blocks_of(inputs);
    return columns * blocks * kBytes + (columns + blocks * kBlock) * static_cast<int64_t>(sizeof(float));
  }

  const char* panel(int first) const { return weights + int64_t{first} * count * kBytes; }

  // What is added to whole numbers to store them.
  static int offset() {
    int added = Format::kBits == 4 ? 8 : 0;
    with_bytes<Format>([&](auto bytes) { added = Format::template kOffset<decltype(bytes)>; });
    return added;
  }

  // Sets the factors of the inputs, by their largest weights in a sample of the outputs. A column whose weights are far
  // above those of most, as one that writes a channel of large numbers, counts as much as most do: else it would decide
  // alone.
  template <class Each>
  void prepare(const PackedDense& to, const Each& each) const {
    bool is_given = false;
    each([&](const auto& weight) { is_given = is_given || weight.kWhole; });
    float largest[kSample];  // of a column
    int columns = 0;
    for_sample(to, each, [&](const auto& weight) {
      const float found = largest_of(weight, to.inputs);
      if (found > 0) largest[columns++] = found;
    });
    const float usual = median_of(largest, columns);
    for_sample(to, each, [&](const auto& weight) {
      const float found = largest_of(weight, to.inputs), share = found > kFar * usual ? usual / found : 1;
      for (int64_t k = 0; k < to.inputs; ++k) {
        const float magnitude = __builtin_fabsf(weight(k)) * share;
        if (magnitude > input_factor[k]) input_factor[k] = magnitude;
      }
    });
    for (int b = 0; b < count; ++b) {
      float* of_block = input_factor + b * kBlock;
      const int inputs = static_cast<int>(min(kBlock, to.inputs - b * kBlock));
      const float median = median_of(of_block, inputs);
      for (int i = 0; i < kBlock; ++i) {
        int exponent = 0;
        if (of_block[i] > 0 && of_block[i] < median / kFar && !is_given)
          __builtin_frexpf(of_block[i] / median * 1.41421356f, &exponent), --exponent;
        of_block[i] = __builtin_ldexpf(1, exponent < -60 ? -60 : exponent);
      }
    }
  }

  // Packs a column. Its factor is a power of two, so that float16 holds the factors of the blocks: the largest is in
  // [2^14, 2^15). It is NaN if a weight is not finite.
  template <class Weight>
  void pack(const Weight& weight, const PackedDense& to, int64_t column) const {
    if constexpr (Weight::kWhole) return pack_whole(weight, to, column);
    float largest = 0, nonfinite = 0;
    for (int64_t k = 0; k < to.inputs; ++k) {
      const float magnitude = __builtin_fabsf(weight(k) / input_factor[k]);
      largest = magnitude > largest ? magnitude : largest;
      nonfinite += magnitude - magnitude;
    }
    constexpr float kLeast = 1e-30f;
    const bool is_zero = !(largest > kLeast);
    int exponent = 0;
    if (!is_zero) __builtin_frexpf(largest / Format::kMost, &exponent);
    factor[column] = nonfinite != 0 ? nonfinite : is_zero ? 0 : __builtin_ldexpf(1, exponent - 15);
    if (nonfinite != 0 || is_zero) return;
    const PanelColumn at(to, column);
    for (int b = 0; b < count; ++b) {
      float some[kBlock];
      for (int i = 0; i < kBlock; ++i) {
        const int64_t k = int64_t{b} * kBlock + i;
        some[i] = k < to.inputs ? weight(k) / input_factor[k] : 0;
      }
      int8_t whole[kBlock];
      store_block(at, b, whole, Format::quantise(some, whole) / factor[column]);
    }
  }

 private:
  static constexpr int kSample = 256;  // columns
  static constexpr float kFar = 8;     // times as large

  // Calls use(weight) for a sample of the columns.
  template <class Each, class Use>
  static void for_sample(const PackedDense& to, const Each& each, const Use& use) {
    const int stride = 1 + (to.outputs - 1) / kSample;
    int column = 0;
    each([&](const auto& weight) {
      if (column++ % stride == 0) use(weight);
    });
  }

  // The largest magnitude of a column; NaN is none.
  template <class Weight>
  static float largest_of(const Weight& weight, int64_t inputs) {
    float largest = 0;
    for (int64_t k = 0; k < inputs; ++k) {
      const float magnitude = __builtin_fabsf(weight(k));
      largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
  }

  // The smallest number that at least half of them do not exceed.
  static float median_of(const float* numbers, int count) {
    for (int i = 0; i < count; ++i) {
      int below = 0, up_to = 0;
      for (int j = 0; j < count; ++j) below += numbers[j] < numbers[i], up_to += numbers[j] <= numbers[i];
      if (2 * below < count && 2 * up_to >= count) return numbers[i];
    }
    return 0;  // of none; NaN is none of them
  }

  // Packs whole numbers as they are. The factor of the column is the largest one.
  template <class Weight>
  void pack_whole(const Weight& weight, const PackedDense& to, int64_t column) const {
    float largest = 0, nonfinite = 0;
    for (int64_t k = 0; k < to.inputs; k += kBlock) {
      const float f = weight.factor(k), magnitude = __builtin_fabsf(f);
      largest = magnitude > __builtin_fabsf(largest) ? f : largest;
      nonfinite += f - f;
    }
    factor[column] = nonfinite != 0 ? nonfinite : largest;
    if (nonfinite != 0 || largest == 0) return;
    const PanelColumn at(to, column);
    for (int b = 0; b < count; ++b) {
      int8_t whole[kBlock];
      for (int i = 0; i < kBlock; ++i) {
        const int64_t k = int64_t{b} * kBlock + i;
        whole[i] = k < to.inputs ? weight.whole(k) : 0;
      }
      store_block(at, b, whole, weight.factor(int64_t{b} * kBlock) / largest);
    }
  }

  void store_block(const PanelColumn& at, int b, const int8_t* whole, float block_factor) const {
    char* block = weights + (at.begin * count + int64_t{b} * at.columns) * kBytes;
    const int added = offset();
    for (int i = 0; i < kBlock; ++i) {
      const uint8_t stored = static_cast<uint8_t>(whole[i] + added);
      const int row = i / kStep * Format::kBits / 8;  // of bytes
      char* to = block + (row * at.columns + at.place) * kStep + i % kStep;
      if constexpr (Format::kBits == 8)
        *to = static_cast<char>(stored);
      else
        *to = static_cast<char>(i / kStep % 2 ? (*to & 0x0f) | stored << 4 : (*to & 0xf0) | stored);
    }
    Float16 narrow[kLanes<float>];
    store_narrow(narrow, broadcast(block_factor));
    __builtin_memcpy(block + at.columns * (kBytes - 2) + at.place * 2, narrow, 2);
  }
};

// The factors of some columns of a block.
HEED_INLINE Vector<float> block_factors(const char* from) { return load_wide(reinterpret_cast<const Float16*>(from)); }

// How a product reads a panel: `kBytes` of a block of a column, where the factors are the last two, and `kSteps` steps
// of a row's block, kTogether of them from each vector of weights.
struct ByteSteps {
  typedef int8_t Number;
  static constexpr int kBytes = kBlock + 2, kSteps = kBlock / kStep, kTogether = 1;
  static HEED_INLINE void split(Integers<float> from, Integers<float>* steps) { steps[0] = from; }
};
struct NibbleSteps {
  typedef int8_t Number;
  static constexpr int kBytes = kBlock / 2 + 2, kSteps = kBlock / kStep, kTogether = 2;
  static HEED_INLINE void split(Integers<float> from, Integers<float>* steps) {
    steps[0] = from & 0x0f0f0f0f, steps[1] = from >> 4 & 0x0f0f0f0f;
  }
};
// Of bytes that are widened to 16 bits.
struct WordSteps {
  typedef int16_t Number;
  static constexpr int kBytes = 2 * kBlock + 2, kSteps = kBlock / 2, kTogether = 1;
  static HEED_INLINE void split(Integers<float> from, Integers<float>* steps) { steps[0] = from; }
};

// Some blocks of a product, [begin, end) of `count`. Sums wait in the memory of y for the blocks that follow, and are
// multiplied by the factors of the columns after the last.
struct BlockRange {
  int begin, end, count;
  const float* factor;

  HEED_INLINE BlockRange of_columns(int c) const { return {begin, end, count, factor + c}; }
};

}  // namespace HEED_ISA
}  // namespace heed

#ifdef HEED_DOT_BYTES
#define HEED_BYTES DotBytes
#define HEED_BYTES_TARGET HEED_DOT_BYTES
#include "block_products.h"
#endif
#ifdef HEED_PAIR_BYTES
#define HEED_BYTES PairBytes
#define HEED_BYTES_TARGET
#include "block_products.h"
#define HEED_BYTES PairNibbles
#define HEED_BYTES_TARGET
#include "block_products.h"
#define HEED_BYTES PairWords
#define HEED_BYTES_TARGET
#include "block_products.h"
#endif

namespace heed {
namespace HEED_ISA {

#if defined(HEED_DOT_BYTES) || defined(HEED_PAIR_BYTES)
// Some blocks of y = x W for one panel; with kPrefetch, it prefetches from `next` on.
template <class Steps, int kOffset, bool kPrefetch, class Bytes>
inline void block_panel(Bytes bytes, Matrix x, int rows, const char* weights, const BlockRange& range, Matrix y,
                        int columns, const char* next) {
  if (columns == kPanel)
    return block_rows<Steps, kOffset, kPanel / kLanes<float>, kPrefetch>(bytes, x, rows, weights, columns, range, 0, y,
                                                                         next);
  for (int c = 0; c < columns; c += kLanes<float>)
    block_rows<Steps, kOffset, 1, false>(bytes, x, rows, weights, columns, range.of_columns(c), c,
                                         {y.data + c, y.stride}, next);
}

// y = x W for one panel, from rows of bytes.
template <class Steps, class Format>
inline void byte_product(const Blocks<Format>& dense, int first, Matrix x, int rows, Matrix y, int columns) {
  const char* weights = dense.panel(first);
  // Few rows wait for memory: they prefetch what they read soon. More rows prefetch the next panel while they compute.
  constexpr int kSoon = 8192;
  const char* next = weights + (rows <= Sizes::kRows ? int64_t{kSoon} : int64_t{dense.count} * Steps::kBytes * columns);
  const BlockRange all{0, dense.count, dense.count, dense.factor + first};
  with_bytes<Format>([&](auto bytes) {
    block_panel<Steps, Format::template kOffset<decltype(bytes)>, true>(bytes, x, rows, weights, all, y, columns, next);
  });
}
#endif

#ifdef HEED_PAIR_BYTES
// The same of bytes, from rows of words. Weights are widened a few inputs at a time: they stay in the first-level
// cache.
template <class Format>
inline void word_product(const Blocks<Format>& dense, int first, Matrix x, int rows, Matrix y, int columns) {
  typedef int16_t Shorts __attribute__((vector_size(HEED_VECTOR_BYTES)));
  constexpr int kBlocks = 8;
  alignas(64) char wide[kBlocks * kPanel * WordSteps::kBytes];
  const char* from = dense.panel(first);
  for (int b = 0; b < dense.count; b += kBlocks) {
    const int end = static_cast<int>(min(b + kBlocks, dense.count));
    char* to = wide;
    for (int i = b; i < end; ++i) {
      for (int step = 0; step < ByteSteps::kSteps; ++step, to += 2 * kStep * columns)
        for (int c = 0; c < columns; c += kLanes<float>, from += kStep * kLanes<float>) {
          const Shorts pairs = load_as<Shorts>(from);  // of inputs: first and third, second and fourth
          store(to + kStep * c, pairs << 8 >> 8);
          store(to + kStep * (columns + c), pairs >> 8);
        }
      __builtin_memcpy(to, from, static_cast<size_t>(2 * columns));
      to += 2 * columns, from += 2 * columns;
    }
    block_panel<WordSteps, 0, false>(PairWords{}, x, rows, wide, {b, end, dense.count, dense.factor + first}, y,
                                     columns, nullptr);
  }
}
#endif

// The same in float, which holds the sums of a block exactly.
template <class Steps, class Format>
inline void whole_product(const Blocks<Format>& dense, int first, Matrix x, int rows, Matrix y, int columns) {
  typedef Integers<float> I;
  constexpr int kRows = 32;
  const int added = Blocks<Format>::offset();
  alignas(64) float wide[kBlock * kPanel], part[kRows * kPanel], factors[kPanel];
  for (int at = 0; at < rows; at += kRows) {
    const int some = static_cast<int>(min(kRows, rows - at));
    const char* from = dense.panel(first);
    for (int b = 0; b < dense.count; ++b, from += 2 * columns) {
      for (int step = 0; step < Steps::kSteps; step += Steps::kTogether)
        for (int c = 0; c < columns; c += kLanes<float>, from += kStep * kLanes<float>) {
          I steps[Steps::kTogether];
          Steps::split(load_as<I>(from), steps);
          for (int j = 0; j < Steps::kTogether; ++j)
            for (int i = 0; i < kStep; ++i) {
              const I whole = (I)((Words)steps[j] << (24 - 8 * i)) >> 24;
              store(wide + ((step + j) * kStep + i) * columns + c,
                    __builtin_convertvector(whole - added, Vector<float>));
            }
        }
      for (int c = 0; c < columns; c += kLanes<float>) store(factors + c, block_factors(from + 2 * c));
      product<float>({row_blocks<float>(x, at)[b].whole, x.stride, 1}, some, wide, columns, part, columns, columns,
                     kBlock, false);
      for (int r = 0; r < some; ++r) {
        const float row_factor = row_blocks<float>(x, at + r)[b].factor;
        for (int c = 0; c < columns; c += kLanes<float>) {
          float* to = y[at + r] + c;
          const Vector<float> before = b == 0 ? Vector<float>{} : load(to);
          const Vector<float> sum = before + load(part + r * columns + c) * (load(factors + c) * row_factor);
          store(to, b + 1 < dense.count ? sum : sum * load(dense.factor + first + c));
        }
      }
    }
  }
}

// A pack of a format of blocks.
template <class Format, class Steps>
struct BlockPack {
  Blocks<Format> dense;
  Matrix x;
  int rows;
  bool of_words;

  static int64_t bytes(int64_t inputs, int64_t columns) { return Blocks<Format>::bytes(inputs, columns); }

  template <class Each>
  static void prepare(const PackedDense& to, const Each& each) {
    Blocks<Format>(to).prepare(to, each);
  }

  template <class Weight>
  static void pack_column(const Weight& weight, const PackedDense& to, int64_t column) {
    Blocks<Format>(to).pack(weight, to, column);
  }

  BlockPack(const PackedDense& d, Matrix from, int count)
      : dense(d), x(from), rows(count), of_words(takes_words(count)) {
    for (int r = 0; r < rows; ++r)
      if (of_words)
        round_row<int16_t>(x, r, d.inputs, dense.input_factor);
      else if (has_bytes())
        round_row<int8_t>(x, r, d.inputs, dense.input_factor);
      else
        round_row<float>(x, r, d.inputs, dense.input_factor);
  }

  void multiply(int first, Matrix y, int columns) const {
#ifdef HEED_PAIR_BYTES
    if constexpr (Format::kBits == 8)
      if (of_words) return word_product(dense, first, x, rows, y, columns);
#endif
#if defined(HEED_DOT_BYTES) || defined(HEED_PAIR_BYTES)
    if (has_bytes()) return byte_product<Steps>(dense, first, x, rows, y, columns);
#endif
    whole_product<Steps>(dense, first, x, rows, y, columns);
  }

 private:
  static bool has_bytes() {
    return with_bytes<Format>([](auto) {});
  }
  // So many rows of bytes that are multiplied in pairs.
  static bool takes_words([[maybe_unused]] int count) {
#ifdef HEED_PAIR_BYTES
    bool pairs = false;
    with_bytes<Format>([&](auto bytes) { pairs = is_pair(bytes); });
    return Format::kBits == 8 && pairs && count >= kWordRows;
#else
    return false;
#endif
  }
#ifdef HEED_PAIR_BYTES
  static constexpr bool is_pair(PairBytes) { return true; }
  template <class Bytes>
  static constexpr bool is_pair(Bytes) {
    return false;
  }
#endif
};

}  // namespace HEED_ISA
}  // namespace heed
