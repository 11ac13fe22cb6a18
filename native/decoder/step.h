// One token of each row through the layers.
#pragma once

#include "layers.h"

namespace heed {
namespace HEED_ISA {

// The memory of one thread that decodes some sources, `beams` rows each. The rows of open sources are kept together, in
// the first places; caches stay with the source.
struct DecoderScratch {
  int beams;
  Layers layers;
  Caches self, cross;               // of each row; of each source
  Cache* beam_caches;               // of the beams of one source
  uint8_t* ancestors;               // of each row, (L,): see Ancestors; none for one beam
  int32_t *source, *source_length;  // the source of each place; the number of keys of each source
  int32_t* position;                // of each place: the number of tokens that its rows have read
  int32_t* token;                   // of each row in its place: its last token

  DecoderScratch(const PackedStack& s, const HeedDecoding& d, int64_t sources, Arena& arena)
      : beams(d.search == HEED_BEAM ? d.beams : 1),
        layers(s, sources * beams, beams, max(beams * cache_capacity(d.length), cache_capacity(d.source_length)),
               arena),
        self(s, sources * beams, d.length, arena, s.layer_count, d.cache),
        cross(s, s.encoded_width ? sources : 0, d.source_length, arena, s.layer_count, HEED_CACHE_FLOAT32),
        beam_caches(arena.take<Cache>(beams)),
        ancestors(arena.take<uint8_t>(beams > 1 ? sources * beams * d.length : 0)),
        source(arena.take<int32_t>(sources)),
        source_length(arena.take<int32_t>(sources)),
        position(arena.take<int32_t>(sources)),
        token(arena.take<int32_t>(sources * beams)) {}

  // Rows [first, first + rows) attend to the source `index`.
  SharedCache of_source(int layer, int32_t index, int first, int rows) const {
    return {first, rows, cross.at(index, layer), {source_length[index]}};
  }
};

// Counts rows that go through the layers.
inline void count_rows(const HeedDecoding& decoding, int64_t rows) {
  if (decoding.tokens_read) __atomic_fetch_add(decoding.tokens_read, rows, __ATOMIC_RELAXED);
}

// The bias of a target's queries to its own keys.
inline RelativeBias target_bias(const HeedDecoding& decoding) {
  return {decoding.relative_bias, decoding.length, decoding.length - 1};
}

class Step {
 public:
  Step(const PackedStack& stack, const HeedDecoding& decoding, const DecoderScratch& scratch)
      : stack_(stack), decoding_(decoding), s_(scratch), layers_(scratch.layers) {}

  // Reads the token of each row of the first `open` places. Returns the input of the output layer.
  Matrix operator()(int open) const {
    const int rows = open * s_.beams;
    count_rows(decoding_, rows);
    for (int r = 0; r < rows; ++r)
      layers_.embed(r, s_.token[r], table_row(decoding_.positions, s_.position[r / s_.beams], stack_.width));
    layers_.decode(
        rows, [&](int i) { attend_self(i, open); },
        [&](int i) {
          layers_.attend(stack_.layers[i].cross, open,
                         [&](int place) { return s_.of_source(i, s_.source[place], place * s_.beams, s_.beams); });
        });
    return layers_.result(rows);
  }

 private:
  // `wide` holds query, key and value of one token of each row of the first `open` places.
  void attend_self(int layer, int open) const {
    const PackedAttention& how = stack_.layers[layer].self;
    for (int row = 0; row < open * s_.beams; ++row) {
      const int position = s_.position[row / s_.beams];
      const float* angles = angles_at(stack_, how, decoding_.rotation, decoding_.length, position);
      layers_.cache_row(how, row, angles, cache_of(layer, row), position);
    }
    if (s_.beams == 1)
      return layers_.attend(how, open,
                            [&](int row) { return SharedCache{row, 1, cache_of(layer, row), visible(row)}; });
    for (int place = 0; place < open; ++place) {
      const int first = place * s_.beams;
      for (int k = 0; k < s_.beams; ++k) s_.beam_caches[k] = cache_of(layer, first + k);
      const int64_t first_row = int64_t{s_.source[place]} * s_.beams;
      const Ancestors ancestors{s_.ancestors + first_row * decoding_.length, decoding_.length};
      layers_.attention.attend_beams(how, layers_.wide.from(first), s_.beams, s_.beam_caches, visible(place), ancestors,
                                     layers_.attended.from(first));
    }
  }

  Cache cache_of(int layer, int row) const {
    return s_.self.at(int64_t{s_.source[row / s_.beams]} * s_.beams + row % s_.beams, layer);
  }

  VisibleKeys visible(int place) const {
    return {s_.position[place] + 1, {s_.position[place]}, target_bias(decoding_)};
  }

  const PackedStack& stack_;
  const HeedDecoding& decoding_;
  const DecoderScratch& s_;
  const Layers& layers_;
};

}  // namespace HEED_ISA
}  // namespace heed
