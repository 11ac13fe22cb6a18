// Which instruction set the kernels use: see heed.h.
#pragma once

#include "kernels/registry.h"

namespace heed {

// The functions for this attention, in the instruction set that is in use.
const Kernels& kernels_for(const HeedAttention& attention);

}  // namespace heed
