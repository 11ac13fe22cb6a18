// What heed.cc calls once it has checked a call: choosing kernels and splitting the work. Returns nullptr, or what went
// wrong.
#pragma once

#include "include/heed.h"

namespace heed {

const char* dot_forward(const HeedAttention& attention, const HeedForward& results, int threads);
const char* dot_backward(const HeedAttention& attention, const HeedBackward& pass, int threads);
const char* dot_bias_gradient(const HeedAttention& attention, const HeedBackward& pass, int threads);

const char* additive_forward(const HeedAttention& attention, const HeedForward& results, int threads);
const char* additive_backward(const HeedAttention& attention, const HeedBackward& pass, int threads);

}  // namespace heed
