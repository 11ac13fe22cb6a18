// What every instruction set offers: a table of functions for each dtype. Pointers to scratch come from the sizes that
// the table tells.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../include/heed.h"

namespace heed {

// Keys of one block: the unit in which keys are skipped and `finite` flags are kept.
inline constexpr int kKeyBlock = 128;
// Queries that go over the keys together.
inline constexpr int kQueryTile = 64;
inline constexpr int kMaxSplits = 32;
// Columns of a product of few rows that one task has, at most.
inline constexpr int kProductColumns = 192;

inline __attribute__((always_inline)) int64_t key_blocks(const HeedAttention& a) {
  return (a.key_length + kKeyBlock - 1) / kKeyBlock;
}
inline __attribute__((always_inline)) int64_t query_tiles(const HeedAttention& a) {
  return (a.query_length + kQueryTile - 1) / kQueryTile;
}

// Of one batch entry of additive attention, room for the scores of each key with each query: whole blocks of keys, and
// queries up to a multiple of the lanes of any vector.
inline __attribute__((always_inline)) int64_t score_columns(const HeedAttention& a) {
  return (a.query_length + 15) / 16 * 16;
}
inline __attribute__((always_inline)) int64_t score_rows(const HeedAttention& a) { return key_blocks(a) * kKeyBlock; }

// Whether the forward pass leaves these for the backward pass.
inline __attribute__((always_inline)) bool keeps_scores(const HeedAttention& a) {
  constexpr double kMostBytes = 67108864;
  const double numbers =
      static_cast<double>(a.batch) * static_cast<double>(score_columns(a)) * static_cast<double>(score_rows(a));
  return a.score == HEED_ADDITIVE && numbers * (a.dtype == HEED_FLOAT64 ? 8 : 4) <= kMostBytes;
}

// Whether the queries that one key head serves at once are few enough to be bound by the memory's speed: a few tokens,
// or one or so of several heads, which tiles would read the keys for one by one. From five of one head on a tile of
// them is faster (twice at 8, three to four times at 16).
inline __attribute__((always_inline)) bool few_queries(const HeedAttention& a) {
  const int64_t heads = a.heads / a.kv_heads;
  return heads * a.query_length <= (heads > 1 ? 16 : 4) && a.key_length > 0 && a.dropout == 0;
}

// What a mask rule must be given: a number for each of these, in an array that a person knows by its name.
enum class Per { kNothing, kBatch, kQuery, kKey };
struct RuleNeeds {
  struct Integers {
    const char* name;
    Per per;
    bool required;
  } first, second = {};
  bool dense = false;
  const char* reach = nullptr;  // what is said where left or right is less than these
  int64_t least_left = INT64_MIN, least_right = INT64_MIN;
};

// Query tiles [tile, tile_end) of heads [head, head_end) of batch entries [batch, batch_end).
struct TileRange {
  int64_t batch, batch_end, head, head_end, tile, tile_end;
};

// A query tile of additive attention and its share of the keys: every `parts`-th block of them.
struct AdditivePart {
  int64_t b, tile, part, parts;
};

// Where gradients of additive attention are summed, in the compute type: rows of units for keys and score vector and
// bias, of gradient_row(V) numbers for values, and of units for the queries of a tile that shares its keys (or null).
struct AdditiveSums {
  void *key, *value, *query, *vector, *bias;
};

struct AdditiveKernels {
  // Bytes of the state of one query tile, and of scratch for one thread.
  size_t (*state_bytes)(const HeedAttention&);
  size_t (*forward_bytes)(const HeedAttention&);
  size_t (*backward_bytes)(const HeedAttention&);
  int (*units_row)(int64_t units);  // numbers from one row of units to the next in the sums
  void (*forward)(const HeedAttention&, const HeedForward&, const uint8_t* finite, const AdditivePart&, char* state,
                  char* scratch);
  // Joins the states of the parts of a query tile, `distance` bytes apart, and writes its results.
  void (*combine)(const HeedAttention&, const HeedForward&, const AdditivePart&, char* states, int64_t distance);
  void (*backward)(const HeedAttention&, const HeedBackward&, const uint8_t* finite, const AdditivePart&,
                   const AdditiveSums&, char* scratch);
};

struct Kernels {
  const RuleNeeds* (*rule_needs)(int32_t kind);  // null for a kind that there is not
  // `finite`, wherever it stands: see `scan`. The forward pass of dot products may be given null and finds out itself.
  // Scratch bytes that one thread needs.
  size_t (*forward_bytes)(const HeedAttention&);
  size_t (*backward_bytes)(const HeedAttention&);
  // Numbers from one row to the next in the summed gradients of keys and values, for a row of this width.
  int (*gradient_row)(int64_t width);
  // finite[(b * K + kv_head) * blocks + block]: whether all keys and values of a block are finite.
  void (*scan)(const HeedAttention&, int64_t b, int64_t kv_head, uint8_t* finite);
  // Bytes of all values in the order that the forward pass wants, 0 if it takes them as they lie; and one block of
  // them.
  size_t (*packed_bytes)(const HeedAttention&);
  void (*pack)(const HeedAttention&, const uint8_t* finite, int64_t b, int64_t kv_head, int64_t block, char* packed);
  void (*forward)(const HeedAttention&, const HeedForward&, const uint8_t* finite, const char* packed, int64_t b,
                  int64_t n, int64_t tile, char* scratch);
  // The same for few queries: blocks [first, last) of one key head, and what makes results of all its splits.
  size_t (*decode_bytes)(const HeedAttention&);
  size_t (*split_bytes)(const HeedAttention&);
  void (*decode)(const HeedAttention&, int64_t b, int64_t kv_head, int64_t first, int64_t last, char* split,
                 char* scratch);
  void (*combine_splits)(const HeedAttention&, const HeedForward&, int64_t b, int64_t kv_head, char* splits,
                         int64_t count);
  // Adds what every `parts`-th tile of the queries of one key head, from the `part`-th on, gives to the gradients of
  // its keys and values, and writes those of the queries.
  void (*backward)(const HeedAttention&, const HeedBackward&, const uint8_t* finite, int64_t b, int64_t kv_head,
                   int64_t part, int64_t parts, void* key_gradient, void* value_gradient, char* scratch);
  // Adds what some tiles give to the gradient of the bias, of these strides.
  void (*bias_gradient)(const HeedAttention&, const HeedBackward&, const uint8_t* finite, const TileRange&,
                        const int64_t* stride, char* scratch);
  // Adds `parts` summed gradients, `distance` bytes apart, and writes rows [begin, end) of one key head.
  void (*write_rows)(const HeedTensor&, int64_t b, int64_t kv_head, int64_t begin, int64_t end, int64_t width, int row,
                     const char* sums, int64_t parts, int64_t distance);
  size_t compute_bytes;  // of one number of the compute type
  AdditiveKernels additive;
};

// What stands beside attention; each does rows [begin, end) of what heed.h has a function of that name for.
struct RowKernels {
  void (*cross_entropy)(const HeedCrossEntropy&, void* losses, void* softmax, int64_t begin, int64_t end);
  void (*cross_entropy_gradient)(const HeedCrossEntropy&, const void* softmax, const void* losses_gradient,
                                 void* logits_gradient, int64_t begin, int64_t end);
  void (*normalization)(const HeedNormalization&, void* y, void* moments, int64_t begin, int64_t end);
  // Adds what the rows give to the sums of the gradients of scale and, `distance` numbers on, offset, unless null.
  void (*normalization_gradient)(const HeedNormalization&, const void* moments, const void* y_gradient,
                                 void* x_gradient, void* sums, int64_t distance, int64_t begin, int64_t end);
  void (*dropout)(const HeedDropout&, void* y, int64_t begin, int64_t end);
  // Columns [begin, end) of a group, at most kProductColumns; and the scratch bytes that this needs.
  size_t (*few_rows_bytes)(const HeedProduct&);
  void (*few_rows)(const HeedProduct&, void* y, int64_t group, int64_t begin, int64_t end, char* scratch);
};
struct DecoderKernels;  // see decoder/registry.h

struct InstructionSet {
  const char* name;
  bool (*supported)();
  const Kernels& (*kernels)(const HeedAttention&);
  const RowKernels& (*row_kernels)(const HeedRows&);
  const DecoderKernels& (*decoder_kernels)();
};

// The functions for this attention, for these rows, and those of the decoder engine, in the instruction set that is in
// use.
const Kernels& kernels_for(const HeedAttention& attention);
const RowKernels& kernels_for(const HeedRows& rows);
const DecoderKernels& decoder_kernels();

extern const InstructionSet kBaseline;
#if defined(__x86_64__)
extern const InstructionSet kAvx2;
extern const InstructionSet kAvx512;
extern const InstructionSet kAmx;
#endif

}  // namespace heed
