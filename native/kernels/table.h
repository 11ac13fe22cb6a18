// The table of one instruction set. Included last by isa_*.cc, which also define HEED_TABLE, HEED_NAME and
// HEED_SUPPORTED.
#pragma once

#include "additive_backward.h"
#include "additive_pass.h"
#include "backward.h"
#include "bias_gradient.h"
#include "decode.h"
#include "forward.h"
#include "registry.h"

namespace heed {
namespace HEED_ISA {

static_assert(kKeys == kKeyBlock && kQueries == kLongestPanel, "registry.h and block.h must agree");

template <class Stored>
struct For {
  typedef typename Compute<Stored>::Type Real;

  typedef VectorProducts<Stored> Products;
  typedef VectorScores<Stored> Scores;

  static size_t forward_bytes(const Attention& a) { return ForwardScratch<Products>::bytes(a); }
  static size_t packed_bytes(const Attention&) { return 0; }
  static size_t backward_bytes(const Attention& a) { return BackwardScratch<Real>::bytes(a) + Scores::bytes(a); }
  static size_t decode_bytes(const Attention& a) { return DecodeScratch<Real>::bytes(a); }
  static size_t partial_bytes(const Attention& a) { return Partial<Real>::bytes(a); }
  static int gradient_row(int64_t width) { return BackwardScratch<Real>::row_width(width); }

  static void scan(const Attention& a, int64_t b, int64_t group, uint8_t* finite) {
    const int64_t blocks = (a.keys + kKeys - 1) / kKeys;
    for (int64_t block = 0; block < blocks; ++block) {
      const Span keys{block * kKeys, static_cast<int>(least(kKeys, a.keys - block * kKeys))};
      finite[(b * a.groups + group) * blocks + block] = block_is_finite<Stored>(a, b, group, keys);
    }
  }

  static void backward(const Attention& a, const Backward& pass, const uint8_t* finite, int64_t b, int64_t group,
                       int64_t part, int64_t parts, void* key_gradient, void* value_gradient, char* scratch) {
    backward_part<Stored, Scores>(a, pass, finite, b, group, part, parts, static_cast<Real*>(key_gradient),
                                  static_cast<Real*>(value_gradient), scratch);
  }

  static void bias_gradient(const Attention& a, const Backward& pass, const uint8_t* finite, const BiasRows& owned,
                            void* target, char* scratch) {
    bias_gradient_rows<Stored, Scores>(a, pass, finite, owned, static_cast<Real*>(target), scratch);
  }

  static void write_rows(const Rows& to, int64_t b, int64_t group, int64_t begin, int64_t end, int64_t width,
                         int row_length, const char* sums, int64_t parts, int64_t distance) {
    for (int64_t j = begin; j < end; ++j) {
      Stored* out = row<Stored>(to, b, j, group);
      for (int64_t c = 0; c < width; ++c) {
        Real total = 0;
        for (int64_t part = 0; part < parts; ++part)
          total += reinterpret_cast<const Real*>(sums + part * distance)[j * row_length + c];
        narrow(total, out + c);
      }
    }
  }

  static constexpr AdditiveKernels additive() {
    return {additive_state_bytes<Stored>, additive_forward_bytes<Stored>, additive_backward_bytes<Stored>,
            units_stride<Real>,           additive_forward<Stored>,       additive_finish<Stored>,
            additive_backward<Stored>};
  }

  static constexpr Kernels table() {
    Kernels k = {};
    k.forward_bytes = forward_bytes;
    k.backward_bytes = backward_bytes;
    k.gradient_row = gradient_row;
    k.scan = scan;
    k.packed_bytes = packed_bytes;
    k.forward_panel = forward_panel<Stored, Products>;
    k.decode_bytes = decode_bytes;
    k.partial_bytes = partial_bytes;
    k.decode_split = decode_split<Stored>;
    k.decode_finish = decode_finish<Stored>;
    k.backward_part = backward;
    k.bias_gradient = bias_gradient;
    k.write_rows = write_rows;
    k.compute_bytes = sizeof(Real);
    k.additive = additive();
    return k;
  }
};

static const Kernels kKernels[4] = {For<float>::table(), For<double>::table(), For<Bfloat16>::table(),
                                    For<Float16>::table()};

}  // namespace HEED_ISA

extern const InstructionSet HEED_TABLE = {
    HEED_NAME, []() -> bool { return HEED_SUPPORTED; },
    [](Number number) -> const Kernels& { return HEED_ISA::kKernels[static_cast<int>(number)]; }};

}  // namespace heed
