// Block sizes of the kernels, each with its reason. They are constants, because arrays and loops need them at compile
// time, and they are the same on every machine, because they decide in which order numbers are summed. Sizes that
// follow from the number of registers stand beside the micro-kernels that keep their sums there. A comment without a
// measurement has none.
#pragma once

#include <cstdint>

namespace heed {

// Queries of a tile, which read the keys together. A hidden pair of a block is one bit of 64 for each key.
inline constexpr int kQueryTile = 64;

// Keys of a block, the unit of skipping keys and of `finite` flags; whole tiles of AMX. Blocks of 48 to 384 keys took
// the same time in a prototype on AVX-512. The scores of a block and a tile take 32 KiB.
inline constexpr int kKeyBlock = 128;

// Query tiles of the backward pass that read a block of keys together.
inline constexpr int kTilesTogether = 8;

// Parts of the keys of few queries, at most; bounds the memory for their results.
inline constexpr int kMaxSplits = 32;

// Columns of a product of few rows for one task, at most.
inline constexpr int kProductColumns = 192;

// Inputs that a product of few rows reads in one piece of its weights.
inline constexpr int kProductDepth = 32;

// Keys whose gradients of additive attention are summed together before they are added to the whole: sums of 32 terms
// are as accurate as those of the dot products' blocks.
inline constexpr int kAdditiveKeys = 32;

// Additive attention keeps its scores for the backward pass if they take no more bytes than this. Keeping them saved
// a fifth of forward and backward at (B, T, S, U) = (4, 512, 512, 256), where they take 4 MiB.
inline constexpr int64_t kMostScoreBytes = int64_t{64} << 20;

}  // namespace heed
