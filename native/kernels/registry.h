// What every instruction set offers, one table each.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../additive.h"
#include "../attention.h"

namespace heed {

// Keys of one block: the unit in which keys are skipped and `finite` flags are kept.
inline constexpr int kKeyBlock = 128;
inline constexpr int kLongestPanel = 64;
inline constexpr int kMostSplits = 32;

// Whether the queries that one key head serves at once are few enough to be bound by the memory's speed.
inline __attribute__((always_inline)) bool few_queries(const Attention& a) {
  return a.heads / a.groups * a.queries <= 16 && a.keys > 0 && a.dropout == 0;
}

// A panel of queries of additive attention and its share of the keys: every `parts`-th block of them.
struct AdditivePart {
  int64_t b, panel;
  int panel_length;
  int64_t part, parts;
};

// Where gradients of additive attention are summed, in the compute type: rows of units for keys and score vector and
// bias, of gradient_row(V) numbers for values, and of units for the queries of a panel that shares its keys (or null).
struct AdditiveSums {
  void *key, *value, *query, *vector, *bias;
};

// The functions of additive attention for one number type.
struct AdditiveKernels {
  // Bytes of the state of one panel, and of scratch for one thread.
  size_t (*state_bytes)(const Additive&);
  size_t (*forward_bytes)(const Additive&);
  size_t (*backward_bytes)(const Additive&);
  int (*units_row)(int64_t units);  // numbers from one row of units to the next in the sums
  void (*forward)(const Additive&, const uint8_t* finite, const AdditivePart&, char* state, char* scratch);
  // Joins the states of the parts of a panel, `distance` bytes apart, and writes its results.
  void (*finish)(const Additive&, const Forward&, const AdditivePart&, char* states, int64_t distance);
  void (*backward)(const Additive&, const AdditiveBackward&, const uint8_t* finite, const AdditivePart&,
                   const AdditiveSums&, char* scratch);
};

// The queries, heads and batches that share the rows of a bias which one task owns.
struct BiasRows {
  int64_t batch, batch_end, head, head_end, panel, panel_end;
};

// The functions for one number type.
struct Kernels {
  // Scratch bytes that one thread needs.
  size_t (*forward_bytes)(const Attention&);
  size_t (*backward_bytes)(const Attention&);
  // Numbers from one row to the next in the summed gradients of keys and values, for a row of this width.
  int (*gradient_row)(int64_t width);
  // finite[(b * K + group) * blocks + block]: whether all keys and values of a block are finite.
  void (*scan)(const Attention&, int64_t b, int64_t group, uint8_t* finite);
  // Bytes of all values in the order that the forward pass wants, 0 if it takes them as they lie; and one block of
  // them.
  size_t (*packed_bytes)(const Attention&);
  void (*pack)(const Attention&, const uint8_t* finite, int64_t b, int64_t group, int64_t block, char* packed);
  void (*forward_panel)(const Attention&, const Forward&, const uint8_t* finite, const char* packed, int64_t b,
                        int64_t n, int64_t panel, int panel_length, char* scratch);
  // The same for few queries: blocks [first, last) of one key head, and what makes results of all its splits.
  size_t (*decode_bytes)(const Attention&);
  size_t (*partial_bytes)(const Attention&);
  void (*decode_split)(const Attention&, int64_t b, int64_t group, int64_t first, int64_t last, char* partial,
                       char* scratch);
  void (*decode_finish)(const Attention&, const Forward&, int64_t b, int64_t group, const char* partials,
                        int64_t splits);
  void (*backward_part)(const Attention&, const Backward&, const uint8_t* finite, int64_t b, int64_t group,
                        int64_t part, int64_t parts, void* key_gradient, void* value_gradient, char* scratch);
  // Adds what panels [panel, panel_end) of some heads of some batches give to the gradient of the bias.
  void (*bias_gradient)(const Attention&, const Backward&, const uint8_t* finite, const BiasRows&, void* target,
                        char* scratch);
  // Adds `parts` summed gradients, `distance` bytes apart, and writes rows [begin, end) of one key head.
  void (*write_rows)(const Rows&, int64_t b, int64_t group, int64_t begin, int64_t end, int64_t width, int row,
                     const char* sums, int64_t parts, int64_t distance);
  size_t compute_bytes;  // of one number of the compute type
  AdditiveKernels additive;
};

struct InstructionSet {
  const char* name;
  bool (*supported)();
  const Kernels& (*kernels)(Number);
};

extern const InstructionSet kBaseline;
#if defined(__x86_64__)
extern const InstructionSet kAvx2;
extern const InstructionSet kAvx512;
extern const InstructionSet kAmx;
#endif

}  // namespace heed
