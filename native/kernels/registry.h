// The kernels of an instruction set: a table of functions for each dtype. Scratch has the sizes that the table returns.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../include/heed.h"
#include "plan.h"
#include "tuning.h"

namespace heed {

inline __attribute__((always_inline)) int64_t key_blocks(const HeedAttention& a) {
  return (a.key_length + kKeyBlock - 1) / kKeyBlock;
}
inline __attribute__((always_inline)) int64_t query_tiles(const HeedAttention& a) {
  return (a.query_length + kQueryTile - 1) / kQueryTile;
}

// The size of the kept scores of a batch entry of additive attention: queries padded to the lanes of any vector, and
// whole blocks of keys.
inline __attribute__((always_inline)) int64_t score_columns(const HeedAttention& a) {
  return (a.query_length + 15) / 16 * 16;
}
inline __attribute__((always_inline)) int64_t score_rows(const HeedAttention& a) { return key_blocks(a) * kKeyBlock; }

// Whether the forward pass keeps scores for the backward pass.
inline __attribute__((always_inline)) bool keeps_scores(const HeedAttention& a) {
  const double numbers =
      static_cast<double>(a.batch) * static_cast<double>(score_columns(a)) * static_cast<double>(score_rows(a));
  return a.score == HEED_ADDITIVE && numbers * (a.dtype == HEED_FLOAT64 ? 8 : 4) <= kMostScoreBytes;
}

// Whether the queries of a key head are so few that memory is the limit: a few tokens of one head, or one or two of
// several heads, for which tiles would read the keys once each. From five tokens of one head on, a tile is faster
// (twice at 8, three to four times at 16).
inline __attribute__((always_inline)) bool few_queries(const HeedAttention& a) {
  const int64_t heads = a.heads / a.kv_heads;
  return heads * a.query_length <= (heads > 1 ? 16 : 4) && a.key_length > 0 && a.dropout == 0;
}

// The arrays and bounds that a mask rule requires; `name` is what the user calls an array.
enum class Per { kNothing, kBatch, kQuery, kKey };
struct RuleNeeds {
  struct Integers {
    const char* name;
    Per per;
    bool required;
  } first, second = {};
  bool dense = false;
  const char* reach = nullptr;  // the error message if left or right is below its minimum
  int64_t least_left = INT64_MIN, least_right = INT64_MIN;
};

// Query tiles [tile, tile_end) of heads [head, head_end) of batch entries [batch, batch_end).
struct TileRange {
  int64_t batch, batch_end, head, head_end, tile, tile_end;
};

// A query tile of additive attention against every `parts`-th block of keys, from the `part`-th on.
struct AdditivePart {
  int64_t b, tile, part, parts;
};

// Partial gradients of additive attention, in the compute type: rows of units for keys, score vector and bias, of
// gradient_row(V) numbers for values, and of units for the queries of a tile whose keys are split (else null).
struct AdditiveSums {
  void *key, *value, *query, *vector, *bias;
};

struct AdditiveKernels {
  // Bytes of the state of a query tile, and of scratch for one thread.
  size_t (*state_bytes)(const HeedAttention&);
  size_t (*forward_bytes)(const HeedAttention&);
  size_t (*backward_bytes)(const HeedAttention&);
  int (*units_row)(int64_t units);  // the stride of rows of units in partial gradients
  void (*forward)(const HeedAttention&, const HeedForward&, const uint8_t* finite, const AdditivePart&, char* state,
                  char* scratch);
  // Joins the states of all parts of a query tile, `distance` bytes apart, and writes its results.
  void (*combine)(const HeedAttention&, const HeedForward&, const AdditivePart&, char* states, int64_t distance);
  void (*backward)(const HeedAttention&, const HeedBackward&, const uint8_t* finite, const AdditivePart&,
                   const AdditiveSums&, char* scratch);
};

// Where to add the gradient of a captured array: to sums, or to the gradient itself, in the compute type; or nowhere.
struct CaptureSum {
  double* sums;
  void* gradient;
};

struct Kernels {
  const char* (*problem_of_scoring)(const HeedAttention&);  // null for none
  const RuleNeeds* (*rule_needs)(int32_t kind);             // null for an unknown kind
  // Of operations that have operands but for LOAD; null for other codes.
  const OperationNeeds* (*operation_needs)(int32_t code);
  // `finite` below: see `scan_finite`. With null, the forward pass of dot products checks as it goes.
  // Bytes of scratch for one thread.
  size_t (*forward_bytes)(const HeedAttention&);
  size_t (*backward_bytes)(const HeedAttention&);
  // The stride of rows of this width in partial gradients of keys and values.
  int (*gradient_row)(int64_t width);
  // finite[(b * K + kv_head) * blocks + block]: whether all keys and values of a block are finite.
  void (*scan_finite)(const HeedAttention&, int64_t b, int64_t kv_head, uint8_t* finite);
  // Bytes of all values packed for the forward pass, 0 if it reads them in place; and packing one block of them.
  size_t (*packed_bytes)(const HeedAttention&);
  void (*pack)(const HeedAttention&, const uint8_t* finite, int64_t b, int64_t kv_head, int64_t block, char* packed);
  void (*forward)(const HeedAttention&, const HeedForward&, const uint8_t* finite, const char* packed, int64_t b,
                  int64_t n, int64_t tile, char* scratch);
  // The forward pass of few queries: blocks [first, last) of one key head; and combining the results of all splits.
  size_t (*decode_bytes)(const HeedAttention&);
  size_t (*split_bytes)(const HeedAttention&);
  void (*decode)(const HeedAttention&, int64_t b, int64_t kv_head, int64_t first, int64_t last, char* split,
                 char* scratch);
  void (*combine_splits)(const HeedAttention&, const HeedForward&, int64_t b, int64_t kv_head, char* splits,
                         int64_t count);
  // Takes every `parts`-th query tile of a key head, from the `part`-th on: adds to the gradients of keys and values,
  // and writes those of the queries. Adds to those of captured arrays too: `capture_sums`, one for each array, or null.
  void (*backward)(const HeedAttention&, const HeedBackward&, const uint8_t* finite, int64_t b, int64_t kv_head,
                   int64_t part, int64_t parts, void* key_gradient, void* value_gradient,
                   const CaptureSum* capture_sums, char* scratch);
  // Adds some tiles to the gradient of the bias, which has these strides.
  void (*bias_gradient)(const HeedAttention&, const HeedBackward&, const uint8_t* finite, const TileRange&,
                        const int64_t* stride, char* scratch);
  // Adds some tiles to the gradients of captured arrays.
  void (*capture_gradients)(const HeedAttention&, const HeedBackward&, const uint8_t* finite, const TileRange&,
                            const CaptureSum* capture_sums, char* scratch);
  // The indices [*first, *end) of a captured array to which a scatter of a query tile may add.
  void (*scatter_range)(const HeedAttention&, int scatter, int64_t b, int64_t n, int64_t tile, int64_t* first,
                        int64_t* end);
  // Whether each pair of a head adds to a number of its own.
  bool (*scatters_apart)(const HeedAttention&, int scatter, int64_t b, int64_t n);
  // Sums `parts` partial gradients, `distance` bytes apart, and writes rows [begin, end) of one key head.
  void (*write_rows)(const HeedTensor&, int64_t b, int64_t kv_head, int64_t begin, int64_t end, int64_t width, int row,
                     const char* sums, int64_t parts, int64_t distance);
  // The same for one vector of the compute type.
  void (*sum_parts)(void* to, int64_t count, const char* sums, int64_t parts, int64_t distance);
  size_t compute_bytes;  // of one number of the compute type
  AdditiveKernels additive;
};

// Fused row-wise ops: rows [begin, end) of the functions of these names in heed.h.
struct RowKernels {
  void (*cross_entropy)(const HeedCrossEntropy&, void* losses, void* softmax, int64_t begin, int64_t end);
  void (*cross_entropy_gradient)(const HeedCrossEntropy&, const void* softmax, const void* losses_gradient,
                                 void* logits_gradient, int64_t begin, int64_t end);
  void (*normalization)(const HeedNormalization&, void* y, void* moments, int64_t begin, int64_t end);
  // Adds the rows to the sums of the gradients of scale and, `distance` numbers on, offset, unless null.
  void (*normalization_gradient)(const HeedNormalization&, const void* moments, const void* y_gradient,
                                 void* x_gradient, void* sums, int64_t distance, int64_t begin, int64_t end);
  void (*sum_parts)(void* to, int64_t count, const char* sums, int64_t parts, int64_t distance);  // as in `Kernels`
  void (*dropout)(const HeedDropout&, void* y, int64_t begin, int64_t end);
  // Columns [begin, end) of a group, at most kProductColumns; and the bytes of scratch for them.
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
  HeedBlockSizes block_sizes;
};

// The functions of the current instruction set for an attention, for rows, and for the decoder engine.
const Kernels& kernels_for(const HeedAttention& attention);
const RowKernels& kernels_for(const HeedRows& rows);
const DecoderKernels& decoder_kernels();

// The instruction sets that the library is built for: the build writes this file from the list in CMakeLists.txt.
#define HEED_INSTRUCTION_SET(name)             \
  namespace name {                             \
  extern const InstructionSet kInstructionSet; \
  }
#include "instruction_sets.inc"
#undef HEED_INSTRUCTION_SET

}  // namespace heed
