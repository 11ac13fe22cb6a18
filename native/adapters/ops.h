// The ops, one function for each file of them.
#pragma once

namespace heed::tf {

// HeedAttention for (B, T, N, H) tensors, HeedAttentionHeads for (B, N, T, H), and the same with Gradient at the end.
void register_attention();

// HeedAdditive for (B, T, U) tensors, and HeedAdditiveGradient.
void register_additive();

}  // namespace heed::tf
