// One token of each row through the layers.
#pragma once

#include "cache.h"
#include "layers.h"

namespace heed {
namespace HEED_ISA {

// What one thread works with while it decodes some sources, `beams` rows for each. Those that are still open stand
// together, in the first places of the rows; caches keep to the source.
struct DecoderScratch {
  int beams;
  Layers layers;
  AttentionScratch attention;
  Caches self, cross;               // of each row; of each source
  Cache* beam_caches;               // those of the beams of one source
  uint8_t* ancestors;               // of each row, (L,): see Ancestors; none for one beam
  int32_t *source, *source_length;  // of each place: which source; of each source: how many keys it has
  int32_t* position;                // of each place: how many tokens its rows have read
  int32_t* token;                   // of each row in its place: its last token

  DecoderScratch(const PackedStack& s, const HeedDecoding& d, int64_t sources, Arena& arena)
      : beams(d.search == HEED_BEAM ? d.beams : 1),
        layers(s, sources * beams, arena),
        attention(s, beams, most(beams * row_numbers(d.length), row_numbers(d.source_length)), arena),
        self(s, sources * beams, d.length, arena),
        cross(s, s.encoded_width ? sources : 0, d.source_length, arena),
        beam_caches(arena.take<Cache>(beams)),
        ancestors(arena.take<uint8_t>(beams > 1 ? sources * beams * d.length : 0)),
        source(arena.take<int32_t>(sources)),
        source_length(arena.take<int32_t>(sources)),
        position(arena.take<int32_t>(sources)),
        token(arena.take<int32_t>(sources * beams)) {}
};

class Step {
 public:
  Step(const PackedStack& stack, const HeedDecoding& decoding, const DecoderScratch& scratch)
      : stack_(stack),
        decoding_(decoding),
        s_(scratch),
        layers_(scratch.layers),
        attention_(stack, scratch.attention) {}

  // Reads the token of each row of the first `open` places. What the output layer wants is in the rows that it returns.
  Rows operator()(int open) const {
    const int rows = open * s_.beams;
    for (int r = 0; r < rows; ++r)
      layers_.embed(r, s_.token[r], table_row(decoding_.positions, s_.position[r / s_.beams], stack_.width));
    layers_.decode(
        rows,
        [&](int i) {
          for (int place = 0; place < open; ++place) attend_self(i, place);
        },
        [&](int i) {
          for (int place = 0; place < open; ++place) attend_source(i, place);
        });
    return layers_.result(rows);
  }

 private:
  // `wide` holds queries, keys and values of one token of each row of that place.
  void attend_self(int layer, int place) const {
    const int position = s_.position[place];
    const int64_t first_row = int64_t{s_.source[place]} * s_.beams;
    const int first = place * s_.beams;
    const PackedAttention& how = stack_.layers[layer].self;
    const float* angles = table_row(decoding_.rotation, position, stack_.head_dim);
    for (int k = 0; k < s_.beams; ++k) {
      layers_.place(how, first + k, angles);
      const float* projected = layers_.wide[first + k];
      s_.beam_caches[k] = s_.self.at(first_row + k, layer);
      write(stack_, s_.beam_caches[k], position, projected + layers_.keys_at(), projected + layers_.values_at());
    }
    const RelativeBias bias{decoding_.relative_bias, decoding_.length, decoding_.length - 1};
    const Seen seen{position + 1, {position, nullptr, nullptr}, bias, false};
    const Rows queries = layers_.wide.from(first), attended = layers_.attended.from(first);
    if (s_.beams == 1) return attention_.shared(how, queries, 1, s_.beam_caches[0], seen, attended);
    const Ancestors ancestors{s_.ancestors + first_row * decoding_.length, decoding_.length};
    attention_.of_beams(how, queries, s_.beams, s_.beam_caches, seen, ancestors, attended);
  }

  void attend_source(int layer, int place) const {
    const int32_t source = s_.source[place];
    const int first = place * s_.beams;
    const Seen seen{s_.source_length[source], {0, nullptr, nullptr}, {}, false};
    attention_.shared(stack_.layers[layer].cross, layers_.wide.from(first), s_.beams, s_.cross.at(source, layer), seen,
                      layers_.attended.from(first));
  }

  const PackedStack& stack_;
  const HeedDecoding& decoding_;
  const DecoderScratch& s_;
  const Layers& layers_;
  const Attention attention_;
};

}  // namespace HEED_ISA
}  // namespace heed
