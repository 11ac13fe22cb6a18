// The decoder kernels of an instruction set. isa_*.cc include this before the table of the other kernels.
#pragma once

#include "beam.h"
#include "search.h"

namespace heed {
namespace HEED_ISA {

inline void decode_sources(const PackedStack& stack, const HeedDecoding& decoding, SourceRange range, int32_t* tokens,
                           float* scores, char* memory) {
  Arena arena(memory);
  switch (decoding.search) {
    case HEED_BEAM: return Beams(stack, decoding, range.end - range.begin, arena).decode(range, tokens, scores);
    case HEED_SAMPLE: return decode_rows<Sample>(stack, decoding, range, tokens, scores, arena);
    default: return decode_rows<Greedy>(stack, decoding, range, tokens, scores, arena);
  }
}

inline size_t decoding_bytes(const PackedStack& stack, const HeedDecoding& decoding, int64_t sources) {
  Arena arena(nullptr);
  if (decoding.search == HEED_BEAM) {
    Beams(stack, decoding, sources, arena);
    return arena.bytes();
  }
  const DecoderScratch s(stack, decoding, sources, arena);
  Sources(stack, decoding, s, sources, arena);
  Prompts(stack, decoding, s, sources, arena);
  if (decoding.search == HEED_SAMPLE)
    Sample(stack, decoding, sources, arena);
  else
    Greedy(stack, decoding, sources, arena);
  return arena.bytes();
}

static const DecoderKernels kDecoderKernels = {packed_bytes, row_numbers, pack_dense, decoding_bytes, decode_sources};

}  // namespace HEED_ISA
}  // namespace heed
