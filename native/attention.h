// Called by heed.cc after its checks: choose kernels and split the work. They throw std::bad_alloc.
#pragma once

#include "include/heed.h"

namespace heed {

void dot_forward(const HeedAttention& attention, const HeedForward& results, int threads);
void dot_backward(const HeedAttention& attention, const HeedBackward& pass, int threads);
void dot_bias_gradient(const HeedAttention& attention, const HeedBackward& pass, int threads);

void additive_forward(const HeedAttention& attention, const HeedForward& results, int threads);
void additive_backward(const HeedAttention& attention, const HeedBackward& pass, int threads);

}  // namespace heed
