// Which instruction set the kernels use.
#pragma once

#include "attention.h"

namespace heed {

struct Kernels;

// The functions for the numbers of this attention, in the instruction set that is in use.
const Kernels& kernels_for(const Attention& attention);

// The instruction set in use: "amx", "avx512", "avx2" or "baseline". HEED_INSTRUCTION_SET in the environment may ask
// for a lesser one than the machine has.
const char* instruction_set();

// Takes another from now on, for tests; nullptr for the best one. False if this machine lacks it.
bool use_instruction_set(const char* name);

}  // namespace heed
