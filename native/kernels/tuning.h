// All sizes of blocks and of tasks, each with its reason. A comment without a measurement has none.
//
// They are constants, because arrays and loops need them at compile time. They are the same on every machine with an
// instruction set, whatever its caches, because they decide in which order numbers are summed: results must not depend
// on the machine. docs/measurements/kernels.md has other sizes, and how to measure them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace heed {

// ---- Blocks of scores

// Queries of a tile, which read the keys together. A hidden pair of a block is one bit of 64 for each key.
inline constexpr int kQueryTile = 64;

// Keys of a block, the unit of skipping keys and of `finite` flags; whole tiles of AMX. The scores of a block and a
// tile take 32 KiB, and a block of keys or values 32 KiB with 64 features: all three stay in a second-level cache of
// 256 KiB, and the scores, in parts, in the first.
inline constexpr int kKeyBlock = 128;

// Query tiles of the backward pass that read a block of keys together.
inline constexpr int kTilesTogether = 8;

// Keys whose gradients of additive attention are summed together before they are added to the whole: sums of 32 terms
// are as accurate as those of the dot products' blocks.
inline constexpr int kAdditiveKeys = 32;

// Additive attention keeps its scores for the backward pass if they take no more bytes than this. Keeping them saved
// a fifth of forward and backward at (B, T, S, U) = (4, 512, 512, 256), where they take 4 MiB.
inline constexpr int64_t kMostScoreBytes = int64_t{64} << 20;

// ---- Products

// Terms that a product sums in one go, at most, and in each go if there are more: 96 rows of 64 float32 numbers take
// 24 KiB of a first-level cache of 32 KiB, and shorter sums are more accurate.
inline constexpr int kMostDepth = 96, kDepth = 64;

// What follows from the number of vector registers, 16 or 32; `kByLane`: whether factors are lanes of a register.
template <int kRegisters, bool kByLane>
struct RegisterSizes {
  static constexpr bool kMany = kRegisters >= 32;
  // Rows and vectors of sums in registers: 6 x 4 of 32 registers, or 6 x 2 of 16; the other registers hold factors.
  static constexpr int kRows = 6, kVectors = kMany && !kByLane ? 4 : 2;
  // Rows beside two vectors: enough sums to keep both multipliers busy.
  static constexpr int kRowsOfTwo = kMany ? 8 : kRows;
  // Vectors of a softmax and of gradients of additive attention that are computed together.
  static constexpr int kTogether = kMany ? 4 : 2;
  // Vectors of a panel of packed weights.
  static constexpr int kPanelVectors = kMany ? 4 : 2;
  // Rows that a product of few rows sums in registers, two vectors each.
  static constexpr int kFewRows = kRegisters / 4;
};

// Columns of a product of few rows for one task, at most.
inline constexpr int kProductColumns = 192;

// Inputs that a product of few rows reads in one piece of its weights.
inline constexpr int kProductDepth = 32;

// ---- Parts of sums and tasks of threads: from shapes alone, never from the number of threads

// Blocks of keys that one task of few queries reads, at most: the memory pages that all heads share are still in the
// TLB for the next head. Fewer, if there are fewer than kSplitTasks tasks.
inline constexpr int64_t kSplitBlocks = 4, kSplitTasks = 32;

// Parts of the keys of few queries, at most; bounds the memory for their results.
inline constexpr int kMaxSplits = 32;

// Tasks of a pass whose keys or queries are split, where there are fewer heads: enough for the threads of most
// machines.
inline constexpr int64_t kPartTasks = 16;

// Numbers for a task of rows, at least: fewer are not worth waking a thread. And parts of the rows whose gradients of
// scale and offset are summed apart, with so many rows at least.
inline constexpr int64_t kTaskNumbers = 32768, kRowParts = 128, kLeastRows = 16;

// ---- The decoder engine

// Rows that are decoded together read the weights once; beyond so many that saves nothing.
inline constexpr int64_t kMostRows = 64;

// Rows from which int8 weights are widened to 16 bits where bytes are multiplied in pairs: an instruction less for each
// product outweighs the widening. 64 rows of 256 inputs take 0.83 of the time on Zen 4.
inline constexpr int kWordRows = 16;

// Tokens of sources and prompts that go through the layers together, and queries of one text that attend together.
inline constexpr int64_t kTokenRows = 256, kTokenTile = 64;

}  // namespace heed
