// All packs, and the choice among them.
#pragma once

#include "bfloat16.h"
#include "float32.h"
#include "in_place.h"
#include "int4.h"
#include "int8.h"

namespace heed {
namespace HEED_ISA {

// use(the HeedPack, or kInPlace, as a Constant); `heed_decoder_make` has checked that there is such a pack.
template <class Use>
HEED_INLINE auto with_pack(int pack, const Use& use) {
  switch (pack) {
#define HEED_USE_PACK(name, text) \
  case HEED_PACK_##name: return use(Constant<HEED_PACK_##name>{});
    HEED_EACH_PACK(HEED_USE_PACK)
#undef HEED_USE_PACK
    case kInPlace: return use(Constant<kInPlace>{});
  }
  __builtin_unreachable();
}

inline int64_t packed_bytes(int64_t inputs, int64_t outputs, int pack) {
  return with_pack(pack,
                   [&](auto number) { return Pack<decltype(number)::value>::bytes(inputs, row_numbers(outputs)); });
}

// The most columns that a product multiplies together.
inline int columns_together(const PackedDense& dense) {
  return with_pack(dense.pack, [](auto number) { return kPanel * kPanelsTogether<number.value>; });
}

// use(the weights of an output) for each output of layers of the same input, in order, as a FloatColumn or WholeColumn.
template <class Use>
inline void for_each_output(const HeedDense* const* parts, int64_t count, const Use& use) {
  for (int64_t i = 0; i < count; ++i) {
    const HeedDense& dense = *parts[i];
    const int64_t step = dense.transposed ? 1 : dense.outputs, next = dense.transposed ? dense.inputs : 1;
    for (int64_t c = 0; c < dense.outputs; ++c)
      if (dense.whole)
        use(WholeColumn{dense.whole + c * next, step, dense.factors + c, dense.outputs, dense.factor_inputs});
      else
        use(FloatColumn{dense.weight + c * next, step});
  }
}

// Packs adjacent layers, or notes where they are.
inline void pack_dense(const HeedDense* const* parts, int64_t count, const PackedDense& packed) {
  with_pack(packed.pack, [&](auto number) {
    typedef Pack<decltype(number)::value> To;
    if constexpr (number.value == kInPlace) {
      To::place(parts, count, packed);
    } else {
      const auto each = [&](const auto& use) { for_each_output(parts, count, use); };
      To::prepare(packed, each);
      int64_t column = 0;
      each([&](const auto& weight) { To::pack_column(weight, packed, column++); });
    }
  });
}

}  // namespace HEED_ISA
}  // namespace heed
