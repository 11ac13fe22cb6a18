// The plain C interface of the core library, for the TensorFlow adapter and for tests.
#pragma once

#include "additive.h"
#include "attention.h"

extern "C" {
__attribute__((visibility("default"))) const char* heed_forward(const heed::Attention*, const heed::Forward*,
                                                                int threads);
__attribute__((visibility("default"))) const char* heed_backward(const heed::Attention*, const heed::Backward*,
                                                                 int threads);
__attribute__((visibility("default"))) const char* heed_additive_forward(const heed::Additive*, const heed::Forward*,
                                                                         int threads);
__attribute__((visibility("default"))) const char* heed_additive_backward(const heed::Additive*,
                                                                          const heed::AdditiveBackward*, int threads);
__attribute__((visibility("default"))) const char* heed_bias_gradient(const heed::Attention*, const heed::Backward*,
                                                                      void* gradient, int threads);
__attribute__((visibility("default"))) const char* heed_instruction_set();
__attribute__((visibility("default"))) int heed_use_instruction_set(const char* name);
__attribute__((visibility("default"))) int heed_available_threads();
}
