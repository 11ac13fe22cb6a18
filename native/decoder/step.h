// One token of each row through the layers.
#pragma once

#include "cache.h"
#include "parts.h"

namespace heed {
namespace HEED_ISA {

// What one thread works with while it decodes some sources, `beams` rows for each. Those that are still open stand
// together, in the first places of `x` and the others; caches keep to the source.
struct DecoderScratch {
  int beams;
  Rows x, normal, wide, attended;  // (rows, D), (rows, D), the widest that a layer has, (rows, N V)
  AttentionScratch attention;
  Caches self, cross;               // of each row; of each source
  Cache* beam_caches;               // those of the beams of one source
  uint8_t* ancestors;               // of each row, (L,): see Ancestors; none for one beam
  int32_t *source, *source_length;  // of each place: which source; of each source: how many keys it has
  int32_t* token;                   // of each row in its place: its last token
  float* visible;                   // the part of one source that counts, (S, width of what is encoded)
  Rows projected;                   // its keys and values, (S, K H + K V)

  static int64_t widest(const PackedStack& s) {
    int64_t widest = 0;
    for (int i = 0; i < s.layer_count; ++i) {
      const PackedLayer& layer = s.layers[i];
      widest = most(widest, most(layer.query_key_value.outputs, layer.hidden.outputs));
      widest = most(widest, layer.cross_query.outputs);
    }
    return widest;
  }
  static Rows take(Arena& arena, int64_t rows, int64_t numbers) {
    return {arena.take<float>(rows * row_numbers(numbers)), row_numbers(numbers)};
  }
  DecoderScratch(const PackedStack& s, const HeedDecoding& d, int64_t sources, Arena& arena)
      : beams(d.search == HEED_BEAM ? d.beams : 1),
        x(take(arena, sources * beams, s.width)),
        normal(take(arena, sources * beams, s.width)),
        wide(take(arena, sources * beams, widest(s))),
        attended(take(arena, sources * beams, s.heads * s.value_dim)),
        attention(s, beams, d.length, d.source_length, arena),
        self(s, sources * beams, d.length, arena),
        cross(s, s.encoded_width ? sources : 0, d.source_length, arena),
        beam_caches(arena.take<Cache>(beams)),
        ancestors(arena.take<uint8_t>(beams > 1 ? sources * beams * d.length : 0)),
        source(arena.take<int32_t>(sources)),
        source_length(arena.take<int32_t>(sources)),
        token(arena.take<int32_t>(sources * beams)),
        visible(arena.take<float>(d.source_length * s.encoded_width)),
        projected(take(arena, s.encoded_width ? d.source_length : 0, s.kv_heads * (s.head_dim + s.value_dim))) {}
};

class Step {
 public:
  Step(const PackedStack& stack, const HeedDecoding& decoding, const DecoderScratch& scratch)
      : stack_(stack),
        decoding_(decoding),
        s_(scratch),
        attention_(stack, scratch.attention, 1 / __builtin_sqrtf(static_cast<float>(stack.head_dim))) {}

  // Keys and values of what one source shows, for all layers. What its mask hides is not even read.
  void read_source(int64_t b, int64_t source) const {
    const int64_t width = stack_.encoded_width, length = decoding_.source_length;
    if (width == 0) return;
    int count = 0;
    for (int64_t j = 0; j < length; ++j) {
      if (decoding_.source_mask && !decoding_.source_mask[b * length + j]) continue;
      const float* from = decoding_.encoded + (b * length + j) * width;
      float* to = s_.visible + count++ * width;
      for (int64_t c = 0; c < width; ++c) to[c] = from[c];
    }
    s_.source_length[source] = count;
    for (int i = 0; i < stack_.layer_count; ++i) {
      if (stack_.layers[i].cross_query.outputs == 0) continue;
      dense(stack_.layers[i].cross_key_value, {s_.visible, width}, count, s_.projected);
      const Cache cache = s_.cross.at(source, i);
      for (int j = 0; j < count; ++j)
        write(stack_, cache, j, s_.projected[j], s_.projected[j] + stack_.kv_heads * stack_.head_dim);
    }
  }

  // Reads the token of each row of the first `open` places. What the output layer wants is in the rows that it returns.
  Rows operator()(int open, int position) const {
    const int rows = open * s_.beams;
    embed(rows, position);
    for (int i = 0; i < stack_.layer_count; ++i) {
      const PackedLayer& layer = stack_.layers[i];
      change(layer.self_norm, rows, layer.output, s_.attended, [&](Rows x) {
        dense(layer.query_key_value, x, rows, s_.wide);
        for (int place = 0; place < open; ++place) attend_self(i, position, place);
      });
      if (layer.cross_query.outputs > 0)
        change(layer.cross_norm, rows, layer.cross_output, s_.attended, [&](Rows x) {
          dense(layer.cross_query, x, rows, s_.wide);
          for (int place = 0; place < open; ++place) {
            const int32_t source = s_.source[place];
            attention_.shared(s_.wide.from(place * s_.beams), s_.beams, s_.cross.at(source, i),
                              s_.source_length[source], {nullptr, 0}, s_.attended.from(place * s_.beams));
          }
        });
      change(layer.feed_forward_norm, rows, layer.back, s_.wide,
             [&](Rows x) { dense_activated(layer.hidden, x, rows, s_.wide, stack_.activation); });
    }
    if (!stack_.final_norm.gamma) return s_.x;
    for (int r = 0; r < rows; ++r) normalise(stack_.final_norm, s_.x[r], stack_.width, s_.normal[r]);
    return s_.normal;
  }

 private:
  void embed(int rows, int position) const {
    const int64_t width = stack_.width;
    for (int r = 0; r < rows; ++r) {
      const float* from = stack_.embedding + s_.token[r] * width;
      for (int c = 0; c < width; c += kLanes<float>) {
        const int count = static_cast<int>(width) - c;
        Vector<float> x = load_some(from + c, count) * stack_.embedding_scale;
        if (decoding_.positions) x += load_some(decoding_.positions + position * width + c, count);
        store(s_.x[r] + c, x);
      }
    }
  }

  // x = x + last(part(x)), normalised before the part or after the sum; the part leaves its result in `result`.
  template <class Part>
  void change(const PackedNorm& norm, int rows, const PackedDense& last, Rows result, const Part& part) const {
    if (stack_.norm_first)
      for (int r = 0; r < rows; ++r) normalise(norm, s_.x[r], stack_.width, s_.normal[r]);
    part(stack_.norm_first ? s_.normal : s_.x);
    dense(last, result, rows, s_.normal);
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < stack_.width; c += kLanes<float>)
        store(s_.x[r] + c, load(s_.x[r] + c) + load(s_.normal[r] + c));
      if (!stack_.norm_first) normalise(norm, s_.x[r], stack_.width, s_.x[r]);
    }
  }

  // `wide` holds queries (N H), keys (K H) and values (K V) of one token of each row of that place.
  void attend_self(int layer, int position, int place) const {
    const int queries = stack_.heads * stack_.head_dim, keys = stack_.kv_heads * stack_.head_dim;
    const int64_t first_row = int64_t{s_.source[place]} * s_.beams;
    const Rows projected = s_.wide.from(place * s_.beams), attended = s_.attended.from(place * s_.beams);
    for (int k = 0; k < s_.beams; ++k) {
      if (decoding_.rotation)
        rotate(decoding_.rotation + static_cast<int64_t>(position) * stack_.head_dim, stack_.heads + stack_.kv_heads,
               projected[k]);
      s_.beam_caches[k] = s_.self.at(first_row + k, layer);
      write(stack_, s_.beam_caches[k], position, projected[k] + queries, projected[k] + queries + keys);
    }
    const DistanceBias bias{decoding_.distance_bias, decoding_.length};
    if (s_.beams == 1) return attention_.shared(projected, 1, s_.beam_caches[0], position + 1, bias, attended);
    const Ancestors ancestors{s_.ancestors + first_row * decoding_.length, decoding_.length};
    attention_.of_beams(projected, s_.beams, s_.beam_caches, position + 1, bias, ancestors, attended);
  }

  // Turns each pair of features (c, c + H/2) of some heads by the angle whose cosines, then sines are given.
  void rotate(const float* angles, int heads, float* x) const {
    const int half = stack_.head_dim / 2;
    for (int n = 0; n < heads; ++n, x += stack_.head_dim)
      for (int c = 0; c < half; ++c) {
        const float first = x[c], second = x[c + half], cosine = angles[c], sine = angles[c + half];
        x[c] = first * cosine - second * sine;
        x[c + half] = first * sine + second * cosine;
      }
  }

  const PackedStack& stack_;
  const HeedDecoding& decoding_;
  const DecoderScratch& s_;
  const Attention attention_;
};

}  // namespace HEED_ISA
}  // namespace heed
