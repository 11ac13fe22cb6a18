// All packs, and the choice among them.
#pragma once

#include "bfloat16.h"
#include "float32.h"
#include "int8.h"

namespace heed {
namespace HEED_ISA {

// use(the HeedPack as a Constant); `heed_decoder_make` has checked that there is such a pack.
template <class Use>
HEED_INLINE auto with_pack(int pack, const Use& use) {
  switch (pack) {
#define HEED_USE_PACK(name, text, most_inputs) \
  case HEED_PACK_##name: return use(Constant<HEED_PACK_##name>{});
    HEED_EACH_PACK(HEED_USE_PACK)
#undef HEED_USE_PACK
  }
  __builtin_unreachable();
}

inline int64_t packed_bytes(int64_t inputs, int64_t outputs, int pack) {
  return with_pack(pack,
                   [&](auto number) { return Pack<decltype(number)::value>::bytes(inputs, row_numbers(outputs)); });
}

// Packs one layer to the columns of a packed one from `column` on.
inline void pack_dense(const HeedDense& dense, int64_t column, const PackedDense& packed) {
  const int64_t input_step = dense.transposed ? 1 : dense.outputs, output_step = dense.transposed ? dense.inputs : 1;
  with_pack(packed.pack, [&](auto number) {
    for (int64_t c = 0; c < dense.outputs; ++c)
      Pack<decltype(number)::value>::pack_column(dense.weight + c * output_step, input_step, packed, column + c);
  });
}

}  // namespace HEED_ISA
}  // namespace heed
