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

// What the backward pass reads and writes: as for any attention, and (U,) in float (double for double).
struct AdditiveBackward {
  Backward attention;
  void* score_vector_gradient;
  void* bias_gradient;  // also without a bias
};

// As their namesakes in attention.h.
const char* check(const Additive& additive);
const char* forward(const Additive& additive, const Forward& results, int threads);
const char* backward(const Additive& additive, const AdditiveBackward& pass, int threads);

}  // namespace heed
