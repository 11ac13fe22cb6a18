// bfloat16 by products of pairs: sums in float of tiles of 16 x 16, by a unit that multiplies tiles.
//
// Scores are transposed, so keys are a left operand in place, and weights, two rows at a time, a right one. Only values
// must be transposed, once a call: the left operand has a feature for each row, keys across.
//
// A unit is a class that may be used while an object of it lives, with
//   static void product(const TileOperand& a, int rows, const TileOperand& b, void* c, ptrdiff_t c_row, int columns,
//                       int steps, bool accumulate);
//     C[r][x] (+)= sum over k of A[r][k] B[k][x] for multiples of 16 rows and columns and `steps` times 32 terms; B
//     holds pairs of terms side by side, and rows of C lie `c_row` bytes apart.
//   static bool is_faster(const HeedAttention&);
//     whether this is faster than products in float: transposing the values does not pay for few queries.
#pragma once

#include "backward.h"

namespace heed {
namespace HEED_ISA {

inline constexpr int kTile = 16;       // rows of a tile, and 32-bit numbers across
inline constexpr int kTileDepth = 32;  // terms of one product of tiles

static_assert(kKeyBlock % kTileDepth == 0 && kQueryTile % kTile == 0, "blocks must be made of tiles");

// An operand of a product: 16 rows of 64 bytes are a tile. Distances in bytes.
struct TileOperand {
  const void* data;
  ptrdiff_t row;   // from one row of a tile to the next
  ptrdiff_t step;  // to the tile of the next 32 terms of the sums
  ptrdiff_t next;  // to the tile of the next 16 rows (of A) or columns (of B)

  const char* tile(int at) const { return static_cast<const char*>(data) + at * next; }
};

inline constexpr ptrdiff_t kTileBytes = 64 * kTile;

// Adjacent tiles, those of `steps` steps together. Loads spread over all sets of the cache, and none seems to alias a
// recent store.
inline TileOperand packed_tiles(const void* data, int steps) { return {data, 64, kTileBytes, steps * kTileBytes}; }
// The left operand whose rows lie `row` bytes apart.
inline TileOperand left_rows(const void* data, ptrdiff_t row) { return {data, row, 64, kTile * row}; }
// The right operand whose rows, each of pairs of terms, lie `row` bytes apart.
inline TileOperand right_rows(const void* data, ptrdiff_t row) { return {data, row, kTile * row, 64}; }

// `count` numbers, padded with 0, as a vector of 16 words or, with kPairs, of 32 numbers (pairs).
template <bool kPairs>
HEED_INLINE Words load_words(const Bfloat16* from, int count) {
  constexpr int kCount = kPairs ? kTileDepth : kTile;
  Bfloat16 numbers[kCount] = {};
  if (count < kCount) {
    for (int lane = 0; lane < count; ++lane) numbers[lane] = from[lane];
    from = numbers;
  }
  if constexpr (kPairs)
    return load_as<Words>(from);
  else
    return load_halves(from);
}

// Replaces non-finite numbers, in the low 16 bits of each word, by 0.
HEED_INLINE Words finite_words(Words x) { return (x & 0x7f80u) == 0x7f80u ? Words{} : x; }

template <class Unit>
class TileProducts {
 public:
  typedef float Real;
  static constexpr bool kPairs = true, kRows = false, kStrips = false;
  static constexpr int kKeyUnit = kTileDepth;

  static bool serves(const HeedAttention& a) {
    return a.dtype == HEED_BFLOAT16 && a.key_length > 0 && Unit::is_faster(a);
  }

  static int value_rows(const HeedAttention& a) { return round_up(a.value_dim, kTile); }
  static int padded_depth(const HeedAttention& a) { return round_up(a.head_dim, kTileDepth); }
  static size_t block_bytes(const HeedAttention& a) { return 2 * kKeyBlock * static_cast<size_t>(value_rows(a)); }
  static size_t bytes(const HeedAttention& a) {
    return 2 * static_cast<size_t>(padded_depth(a)) * (kQueryTile + kKeyBlock);
  }
  static size_t packed_bytes(const HeedAttention& a) {
    return static_cast<size_t>(a.batch * a.kv_heads * key_blocks(a)) * block_bytes(a);
  }

  // Packs one block as tiles [feature][key], those of a feature together. 0 beyond the last key and feature and, with a
  // mask, for non-finite numbers.
  static void pack(const HeedAttention& a, const uint8_t* finite, int64_t b, int64_t kv_head, int64_t block,
                   char* packed) {
    const int64_t index = (b * a.kv_heads + kv_head) * key_blocks(a) + block;
    pack_transposed(a.value, b, kv_head, block_keys(block, 0, a.key_length), static_cast<int>(a.value_dim),
                    block_has_nonfinite(a, finite, b, kv_head, block),
                    packed + static_cast<size_t>(index) * block_bytes(a));
  }

  static constexpr int kKeySteps = kKeyBlock / kTileDepth;

  // The same for the keys of a block from any rows, with a multiple of 16 features; `has_nonfinite`: replaces
  // non-finite numbers by 0.
  static void pack_transposed(const HeedTensor& from, int64_t b, int64_t kv_head, Span keys, int width,
                              bool has_nonfinite, char* to) {
    for (int j = 0; j < kKeyBlock; j += kTileDepth)
      for (int c = 0; c < width; c += kTile) {
        Vector<float> square[kTile];
        for (int r = 0; r < kTile; ++r) {
          Words pair[2] = {};
          for (int i = 0; i < 2; ++i)
            if (const int y = j + 2 * r + i; y < keys.length) {
              pair[i] = load_words<false>(row<Bfloat16>(from, b, keys.begin + y, kv_head) + c, width - c);
              if (has_nonfinite) pair[i] = finite_words(pair[i]);
            }
          square[r] = (Vector<float>)(pair[0] | pair[1] << 16);
        }
        transpose<float>(square);
        char* tile = to + (c / kTile * kKeySteps + j / kTileDepth) * kTileBytes;
        for (int r = 0; r < kTile; ++r) store(reinterpret_cast<float*>(tile + 64 * r), square[r]);
      }
  }

  TileProducts(const HeedAttention& a, int64_t b, int64_t kv_head, const char* packed, char* memory)
      : a_(a),
        b_(b),
        kv_head_(kv_head),
        values_(!packed ? nullptr
                        : packed + static_cast<size_t>((b * a.kv_heads + kv_head) * key_blocks(a)) * block_bytes(a)),
        query_(reinterpret_cast<float*>(memory)),
        copy_(reinterpret_cast<uint16_t*>(memory) + kQueryTile * padded_depth(a)),
        // Products are of unscaled numbers. The scale is applied later, as the unit of scores, unless that may
        // overflow.
        scaled_(!(a.scoring.scale > 1e-3 && a.scoring.scale < 1e3)) {}

  float unit() const { return scaled_ ? 1.0f : static_cast<float>(a_.scoring.scale); }

  void load_query(int64_t n, Span queries) { load_query(n, queries, query_); }

  // Packs tiles of 16 queries, those of a query together; row c / 2 holds features c and c + 1.
  void load_query(int64_t n, Span queries, float* to) const {
    const int width = static_cast<int>(a_.head_dim);
    for (int x = 0; x < queries.length; x += kTile)
      for (int c = 0; c < width; c += kTileDepth) {
        Vector<float> square[kTile];
        for (int r = 0; r < kTile; ++r) {
          Words words{};
          if (x + r < queries.length)
            words = load_words<true>(row<Bfloat16>(a_.query, b_, queries.begin + x + r, n) + c, width - c);
          square[r] = (Vector<float>)words;
        }
        transpose<float>(square);
        for (int r = 0; r < kTile; ++r) store(to + x * (padded_depth(a_) / 2) + (c / 2 + r) * kTile, square[r]);
      }
  }

  // Rows as a left operand: in place, `distance` numbers apart, or a copy in whole tiles, padded with 0;
  // `has_nonfinite`: with non-finite numbers replaced by 0.
  static const Bfloat16* left_operand(const Bfloat16* from, ptrdiff_t* distance, int rows, int width,
                                      bool has_nonfinite, uint16_t* copy) {
    const int wide = round_up(width, kTileDepth);
    if (!has_nonfinite && wide == width && rows % kTile == 0) return from;
    for (int y = 0; y < round_up(rows, kTile); ++y)
      for (int c = 0; c < wide; c += kTile) {
        Words words{};
        if (y < rows && c < width) words = load_words<false>(from + y * *distance + c, width - c);
        store_halves(copy + y * wide + c, has_nonfinite ? finite_words(words) : words);
      }
    *distance = wide;
    return reinterpret_cast<const Bfloat16*>(copy);
  }

  void scores(Span keys, bool has_nonfinite, const Strips<float>& strips, float* to) {
    scores(keys, has_nonfinite, strips.columns(), to, query_);
  }
  // The same for packed queries, see `load_query`.
  void scores(Span keys, bool has_nonfinite, int columns, float* scores, const float* query) {
    ptrdiff_t distance = a_.key.row_stride;
    const Bfloat16* key = left_operand(row<Bfloat16>(a_.key, b_, keys.begin, kv_head_), &distance, keys.length,
                                       static_cast<int>(a_.head_dim), has_nonfinite, copy_);
    const int steps = padded_depth(a_) / kTileDepth, rows = round_up(keys.length, kTile);
    Unit::product(left_rows(key, 2 * distance), rows, packed_tiles(query, steps), scores, 4 * kQueryTile, columns,
                  steps, false);
    if (scaled_) {
      const float scale = static_cast<float>(a_.scoring.scale);
      for (int at = 0; at < keys.length * kQueryTile; at += kTile) store(scores + at, load(scores + at) * scale);
    }
  }

  void add_values(Span keys, bool, const Strips<float>& strips, float* pairs, float* output) {
    const int steps = round_up(keys.length, kTileDepth) / kTileDepth, columns = strips.columns();
    for (int y = round_up(keys.length, 2); y < steps * kTileDepth; y += 2)
      for (int x = 0; x < columns; x += kTile) store(pair_at(pairs, y, x), Vector<float>{});
    const char* value = values_ + static_cast<size_t>(keys.begin / kKeyBlock) * block_bytes(a_);
    Unit::product(packed_tiles(value + first_tile(keys), kKeySteps), value_rows(a_), packed_tiles(pairs, kKeySteps),
                  output, 4 * kQueryTile, columns, steps, true);
  }
  // The offset of the first key in the tiles of its block.
  static ptrdiff_t first_tile(Span keys) { return keys.begin % kKeyBlock / kTileDepth * kTileBytes; }

 private:
  const HeedAttention& a_;
  int64_t b_, kv_head_;
  const char* values_;
  float* query_;
  uint16_t* copy_;
  bool scaled_;
  const Unit unit_{};
};

// See `VectorGradients`. Weights and gradients of the scores are rounded to bfloat16 for their products, as weights are
// in the forward pass; all sums are in float.
//
// A query tile is packed in four ways, once for all keys: queries and output gradients across, two features in a word,
// as right operands of the products with keys and values; and in rows, two queries in a word, as right operands of the
// gradients of keys and values. Keys are transposed once for each block, for the gradients of queries.
template <class Unit>
class TileGradients {
  typedef TileProducts<Unit> Products;

 public:
  typedef float Real;
  static constexpr int kKeyUnit = kTileDepth;
  static constexpr bool kCopies = false, kStrips = false;

  static size_t bytes(const HeedAttention& a) {
    return Products::bytes(a) + kTilesTogether * 4 * TileLayout(a).words + 2 * transposed_numbers(a) +
           2 * kKeyBlock * static_cast<size_t>(round_up(a.value_dim, kTileDepth)) + 4 * kRowsOfWeights;
  }

  TileGradients(const HeedAttention& a, int64_t b, int64_t kv_head, char* memory)
      : a_(a),
        b_(b),
        kv_head_(kv_head),
        layout_(a),
        products_(a, b, kv_head, nullptr, memory),
        words_(reinterpret_cast<float*>(memory + Products::bytes(a))),
        pairs_(words_ + kTilesTogether * layout_.words),
        rows_(reinterpret_cast<uint16_t*>(pairs_ + kRowsOfWeights / 2)),
        transposed_keys_(rows_ + kRowsOfWeights),
        value_copy_(transposed_keys_ + transposed_numbers(a)) {}

  float unit() const { return products_.unit(); }

  void load_tile(int at, const QueryTile<float>& p) {
    const int head_dim = static_cast<int>(a_.head_dim), value_dim = static_cast<int>(a_.value_dim);
    const int key_row = gradient_row<float>(head_dim), value_row = gradient_row<float>(value_dim);
    float* query = words_ + at * layout_.words;
    products_.load_query(p.n, p.queries, query);
    float *across = query + layout_.gradient, *query_rows = query + layout_.query_rows,
          *gradient_rows = query + layout_.gradient_rows;
    for (int c = 0; c < layout_.value_depth; c += 2)
      for (int x = 0; x < kQueryTile; x += kTile) {
        const auto feature = [&](int n) {
          return n < value_dim && x < p.queries.length ? load(p.output_gradient + n * kQueryTile + x) : Vector<float>{};
        };
        store(across + x * (layout_.value_depth / 2) + c / 2 * kTile, pack_pair(feature(c), feature(c + 1)));
      }
    for (int x = 0; x < kQueryTile; x += 2) {
      // Rows that add nothing are 0.
      const auto there = [&](int n) { return n < p.queries.length && p.row_max[n] != kInfinity<float>; };
      for (int c = 0; c < key_row; c += kTile) {
        const auto row_of_query = [&](int n) {
          return there(n) ? load_words<false>(row<Bfloat16>(a_.query, b_, p.queries.begin + n, p.n) + c, head_dim - c)
                          : Words{};
        };
        store(query_rows + x / 2 * key_row + c, (Vector<float>)(row_of_query(x) | row_of_query(x + 1) << 16));
      }
      for (int c = 0; c < value_row; c += kTile) {
        const auto row_of_gradient = [&](int n) {
          return there(n) ? load(p.output_gradient_rows + n * value_row + c) : Vector<float>{};
        };
        store(gradient_rows + x / 2 * value_row + c, pack_pair(row_of_gradient(x), row_of_gradient(x + 1)));
      }
    }
  }

  void load_keys(const KeyBlock<float>& block) {
    Products::pack_transposed(a_.key, b_, kv_head_, block.keys, static_cast<int>(a_.head_dim), block.has_nonfinite,
                              reinterpret_cast<char*>(transposed_keys_));
  }

  void scores(int at, const QueryTile<float>& p, const KeyBlock<float>& block, const Strips<float>&, float* to) {
    products_.scores(block.keys, block.has_nonfinite, columns_of(p), to, words_ + at * layout_.words);
  }

  void weight_gradients(int at, const QueryTile<float>& p, const KeyBlock<float>& block, const Strips<float>&,
                        float* to) {
    ptrdiff_t distance = a_.value.row_stride;
    const Bfloat16* value =
        Products::left_operand(row<Bfloat16>(a_.value, b_, block.keys.begin, kv_head_), &distance, block.keys.length,
                               static_cast<int>(a_.value_dim), block.has_nonfinite, value_copy_);
    const int steps = layout_.value_depth / kTileDepth, rows = round_up(block.keys.length, kTile);
    const TileOperand left = left_rows(value, 2 * distance);
    const TileOperand right = packed_tiles(words_ + at * layout_.words + layout_.gradient, steps);
    Unit::product(left, rows, right, to, 4 * kQueryTile, columns_of(p), steps, false);
  }

  void add(int at, const QueryTile<float>& p, const KeyBlock<float>& block, const VisiblePairs<float>&, float* weights,
           float* score_gradients, float* key_gradient, float* value_gradient) {
    const int keys = block.keys.length, rows = round_up(keys, kTile);
    const int key_row = gradient_row<float>(a_.head_dim), value_row = gradient_row<float>(a_.value_dim);
    const float* of_tile = words_ + at * layout_.words;
    constexpr int kQuerySteps = kQueryTile / kTileDepth;
    const TileOperand left = left_rows(rows_, 2 * kQueryTile);
    narrow(weights, keys, columns_of(p), 1.0f);
    Unit::product(left, rows, right_rows(of_tile + layout_.gradient_rows, 4 * value_row), value_gradient, 4 * value_row,
                  value_row, kQuerySteps, true);
    narrow(score_gradients, keys, columns_of(p), static_cast<float>(a_.scoring.scale));
    Unit::product(left, rows, right_rows(of_tile + layout_.query_rows, 4 * key_row), key_gradient, 4 * key_row, key_row,
                  kQuerySteps, true);
    const int depth = round_up(keys, kTileDepth);
    for (int y = 0; y < depth; y += 2)
      for (int x = 0; x < columns_of(p); x += kTile) {
        const auto key = [&](int n) { return n < keys ? load(score_gradients + n * kQueryTile + x) : Vector<float>{}; };
        store(pair_at(pairs_, y, x), pack_pair(key(y), key(y + 1)));
      }
    constexpr int kKeySteps = Products::kKeySteps;
    const char* transposed = reinterpret_cast<const char*>(transposed_keys_) + Products::first_tile(block.keys);
    Unit::product(packed_tiles(transposed, kKeySteps), key_row, packed_tiles(pairs_, kKeySteps), p.query_gradient,
                  4 * kQueryTile, columns_of(p), depth / kTileDepth, true);
  }

 private:
  static constexpr int kRowsOfWeights = kKeyBlock * kQueryTile;

  // The offsets of the four forms of a tile, in words.
  struct TileLayout {
    int value_depth, gradient, query_rows, gradient_rows;
    size_t words;

    explicit TileLayout(const HeedAttention& a)
        : value_depth(round_up(a.value_dim, kTileDepth)),
          gradient(kQueryTile * Products::padded_depth(a) / 2),
          query_rows(gradient + kQueryTile * value_depth / 2),
          gradient_rows(query_rows + kQueryTile / 2 * gradient_row<float>(a.head_dim)),
          words(static_cast<size_t>(gradient_rows + kQueryTile / 2 * gradient_row<float>(a.value_dim))) {}
  };

  static size_t transposed_numbers(const HeedAttention& a) {
    return static_cast<size_t>(kKeyBlock) * static_cast<size_t>(round_up(a.head_dim, kTile));
  }
  static int columns_of(const QueryTile<float>& p) { return round_up(p.queries.length, kTile); }

  // rows_[y][x] = factor * numbers[y][x] in bfloat16, 0 beyond the keys and columns.
  void narrow(const float* numbers, int keys, int columns, float factor) {
    for (int y = 0; y < round_up(keys, kTile); ++y)
      for (int x = 0; x < kQueryTile; x += kTile) {
        const bool there = y < keys && x < columns;
        store_halves(rows_ + y * kQueryTile + x,
                     there ? ((Words)(load(numbers + y * kQueryTile + x) * factor) + 0x8000u) >> 16 : Words{});
      }
  }

  const HeedAttention& a_;
  int64_t b_, kv_head_;
  TileLayout layout_;
  Products products_;
  float *words_, *pairs_;  // of the tiles; gradients of the scores, two keys a word
  uint16_t *rows_, *transposed_keys_, *value_copy_;
};

}  // namespace HEED_ISA
}  // namespace heed
