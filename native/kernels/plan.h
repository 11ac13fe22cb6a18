// A program of heed.h, prepared for a call. `Planned` in program.h makes it; the kernels read it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../include/heed.h"
#include "tuning.h"

namespace heed {

// What the value of a step depends on. What does not depend on both is computed once for many pairs.
enum Dependence : uint8_t { kOnNothing = 0, kOnQuery = 1, kOnKey = 2, kOnPair = 3 };

// Codes of steps beside `HeedOpcode`: two operations on floats of pairs in one pass.
enum : int32_t {
  kAbsDifference = HEED_OP_ISFINITE + 1,  // |a - b|
  kScoreAndProduct,                       // c + a * b
  kScoreLessProduct,                      // c - a * b
  kStepCodes
};

// An instruction that some result needs. `operands` are earlier steps, in the order of a, b, c.
struct Step {
  int32_t opcode;
  int32_t type;        // HeedType of the value
  int32_t input_type;  // of the last operand: chooses among the functions of an operation
  int32_t capture;
  double constant;
  int32_t operand_count, operands[3];
  Dependence dependence;
  int32_t slot;    // the buffer of its values, among those of its dependence
  int32_t spread;  // of a value of queries or keys alone that pairs need: the number among those, else -1
  int32_t kept;    // of a value of pairs that the backward pass keeps for the derivative: its number, else -1
};

// The instructions that some results need, in order.
struct Code {
  const Step* steps;
  int32_t count;
  int32_t slots[4];        // buffers of each dependence
  int32_t spread_slots;    // buffers of spread values of queries, or of keys, whichever are more
  bool by_head;            // whether any step depends on the head
  bool follows_lines;      // whether pairs read or add to captured floats: their indices may lie on lines, see `Line`
  const int32_t* results;  // steps whose values are asked for, but for the indices of scatters
  int32_t result_count;
};

// The least and the greatest number of each kSummaryFactor numbers of the level below; below the first is a captured
// array of integers or booleans.
inline constexpr int64_t kSummaryFactor = 32;
inline constexpr int kSummaryLevels = 13;
struct Summary {
  const int32_t *least[kSummaryLevels], *most[kSummaryLevels];
  int64_t size[kSummaryLevels];
  int levels;  // the last one is short; 0: there is no summary
};

// How many values the backward pass keeps at most, beside the score before: a block of numbers each.
inline constexpr int kMostKept = 4;

struct Plan {
  const HeedCapture* captures;
  int32_t capture_count;
  bool is_double;
  bool modifies;  // whether there is a score
  // In the backward pass the code of the score keeps so many values of a block for the derivative, where SCORE stands
  // for each of them: for the score before, if `kept_score` is its number (else -1), and for values of `score`.
  int32_t kept_count, kept_score;
  Code score, keep, derivative;
  int32_t score_step, keep_step, gradient_step;  // the results: steps of these codes, or -1
  int32_t scatter_count;
  struct Scatter {
    int32_t capture, index, gradient;  // the latter two are steps of `derivative`
  } scatters[HEED_MAX_SCATTERS];
  Summary summaries[HEED_MAX_CAPTURES];
};

// The kinds of the mask rules that `keep` and scores that hide their keys become; callers cannot pass them.
// `dense.data` is the plan, `right` the number of heads.
inline constexpr int32_t kProgramRule = INT32_MIN, kScoreRule = kProgramRule + 1;
inline constexpr int kMostRules = HEED_MAX_RULES + 2;

// In the attention that kernels get, `program` is a plan.
inline const Plan* plan_of(const HeedAttention& a) { return reinterpret_cast<const Plan*>(a.program); }
inline const Plan& plan_of(const HeedMaskRule& rule) { return *static_cast<const Plan*>(rule.dense.data); }

// What an operation takes and gives.
struct OperationNeeds {
  enum Result { kAsInput, kFloat, kInt, kBool };
  const char* name;
  int operands;
  uint32_t inputs;  // a bit for each HeedType that operands may have; all have the same, but for the condition of WHERE
  Result result;
};
inline constexpr uint32_t kFloats = 1 << HEED_FLOAT, kInts = 1 << HEED_INT, kBools = 1 << HEED_BOOL;
inline constexpr uint32_t kNumbers = kFloats | kInts, kBits = kInts | kBools, kAnyType = kNumbers | kBools;

}  // namespace heed
