// Additive attention as plain data. No TensorFlow, no instruction set.
#pragma once

#include "attention.h"

namespace heed {

// Scores are sum_u score_vector_u * tanh(query_iu + key_ju + bias_u). Everything else, masks and dropout too, is as in
// `attention`, of one head, whose width is U; it has no scale, soft cap, bias or slopes of its own.
struct Additive {
  Attention attention;
  const void* score_vector;  // (U,) in float (double for double)
  const void* bias;          // the same, or null
};

// `softmax` is (2, B, T) in float (double for double): the highest score of each row, and the sum of exp(score -
// highest). The backward pass takes the weights from these, as exp(score - lse) would bring in the rounding of the
// log-sum-exp.
struct AdditiveForward {
  Forward attention;
  void* softmax;
};

// What the backward pass reads and writes: as for any attention, with `softmax` in place of the log-sum-exp, and (U,)
// in float (double for double).
struct AdditiveBackward {
  Backward attention;
  const void* softmax;
  void* score_vector_gradient;
  void* bias_gradient;  // also without a bias
};

// As their namesakes in attention.h.
const char* check(const Additive& additive);
const char* forward(const Additive& additive, const AdditiveForward& results, int threads);
const char* backward(const Additive& additive, const AdditiveBackward& pass, int threads);

}  // namespace heed
