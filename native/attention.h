// Dot-product attention as plain data: what to compute, on which memory. No TensorFlow, no instruction set.
#pragma once

#include <cstdint>

namespace heed {

enum class Number : int32_t { kFloat32 = 0, kFloat64 = 1, kBfloat16 = 2, kFloat16 = 3 };

// A (B, position, head, width) array, whose last axis is contiguous. Strides count numbers, not bytes; 0 broadcasts.
struct Rows {
  void* data;
  int64_t batch, position, head;
};

// An array that broadcasts to (B, N, T, S), by strides that count elements.
struct Scores {
  const void* data;
  int64_t stride[4];
};

enum class Rule : int32_t { kWindow = 0, kPrefix = 1, kLengths = 2, kSegments = 3, kDense = 4 };

inline constexpr int64_t kFar = int64_t{1} << 30;  // "no limit" for a window; survives adding any position

// One rule of a mask; a pair counts if all rules allow it. With a = align[b], query i stands at key position i + a:
//   kWindow    i + a - left <= j <= i + a + right
//   kPrefix    j < first[b] or j <= i + a
//   kLengths   j < first[b] and, if there is a second array, i < second[b]
//   kSegments  first[b][i] == second[b][j]
//   kDense     dense[b][n][i][j] != 0
struct MaskRule {
  Rule rule;
  int64_t left, right;
  const int32_t* align;
  int64_t align_stride;
  const int32_t* first;
  int64_t first_stride;
  const int32_t* second;
  int64_t second_stride;
  Scores dense;  // bytes
};

inline constexpr int kMostRules = 8;

inline constexpr double kHidingBias = -1e30;

// How large scale and soft cap may be, and how small a soft cap, where float is computed with: far within its range, so
// that what they are multiplied with stays there too.
inline constexpr double kMostScale = 1e30;

struct Attention {
  Number number;                                // of query, key, value and output
  int64_t batch, heads, groups, queries, keys;  // B, N, K, T, S
  int64_t width, value_width;                   // H, V
  double scale, soft_cap;                       // soft_cap 0: none
  Rows query, key, value;
  Scores bias;                 // float (double for double), or no data; kHidingBias or less hides a key as -inf does
  const void* slopes;          // (N,) of ALiBi in the same type, or null
  const int32_t* slope_align;  // where query 0 stands for ALiBi, or null for 0
  int64_t slope_align_stride;
  double dropout;  // 0 <= dropout < 1
  uint32_t seed[2];
  int32_t rules;
  MaskRule rule[kMostRules];
};

// Results of the forward pass, but for the output contiguous in float (double for double): lse is (B, N, T), and
// `softmax` (2, B, N, T), for the backward pass alone, as it is in the units of the scores that a kernel computes: a
// score that weights are relative to, close to the highest of each row, and the sum of exp(score - that one); 0 for a
// row that sees nothing, NaN for one that sees what is not finite.
struct Forward {
  Rows output;
  void* lse;
  void* softmax;
};

// What the backward pass reads (of the forward pass and from above) and writes. `lse_gradient` may be null. Weights
// come from `softmax`, as exp(score - lse) would bring in the rounding of the log-sum-exp.
struct Backward {
  Rows output;
  const void* softmax;
  Rows output_gradient;
  const void* lse_gradient;
  Rows query_gradient, key_gradient, value_gradient;
};

// nullptr if all is well, else why the arguments cannot be right.
const char* check(const Attention& attention);

// `threads` is how many may work at most, the caller included; results do not depend on it.
// Returns nullptr, or what went wrong.
const char* forward(const Attention& attention, const Forward& results, int threads);
const char* backward(const Attention& attention, const Backward& pass, int threads);
// The gradient of the bias, contiguous and of its own shape, in its type. What `pass` would have written is not
// touched.
const char* bias_gradient(const Attention& attention, const Backward& pass, void* gradient, int threads);

}  // namespace heed
