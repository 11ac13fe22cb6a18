// One token of some rows through the layers.
#pragma once

#include "cache.h"
#include "parts.h"

namespace heed {
namespace HEED_ISA {

// What one thread works with while it decodes some rows. The rows that have not ended stand together, in the first
// places of `x` and the others; caches keep to the row.
struct DecoderScratch {
  Rows x, normal, wide, attended;  // (rows, D), (rows, D), the widest that a layer has, (rows, N V)
  AttentionScratch attention;
  Caches self, cross;
  int32_t *row, *token, *source_length;  // of each place: which row, its last token; of each row: how many keys
  float* visible;                        // the part of one source that counts, (S, width of what is encoded)
  Rows projected;                        // its keys and values, (S, K H + K V)

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
  DecoderScratch(const PackedStack& s, const HeedDecoding& d, int64_t rows, Arena& arena)
      : x(take(arena, rows, s.width)),
        normal(take(arena, rows, s.width)),
        wide(take(arena, rows, widest(s))),
        attended(take(arena, rows, s.heads * s.value_dim)),
        attention(s, most(d.length, d.source_length), arena),
        self(s, rows, d.length, arena),
        cross(s, s.encoded_width ? rows : 0, d.source_length, arena),
        row(arena.take<int32_t>(rows)),
        token(arena.take<int32_t>(rows)),
        source_length(arena.take<int32_t>(rows)),
        visible(arena.take<float>(d.source_length * s.encoded_width)),
        projected(take(arena, s.encoded_width ? d.source_length : 0, s.kv_heads * (s.head_dim + s.value_dim))) {}
};

class Step {
 public:
  Step(const PackedStack& stack, const HeedDecoding& decoding, const DecoderScratch& scratch)
      : stack_(stack),
        decoding_(decoding),
        s_(scratch),
        scale_(1 / __builtin_sqrtf(static_cast<float>(stack.head_dim))) {}

  // Keys and values of what one source shows, for all layers. What its mask hides is not even read.
  void read_source(int64_t b, int64_t row) const {
    const int64_t width = stack_.encoded_width, length = decoding_.source_length;
    if (width == 0) return;
    int count = 0;
    for (int64_t j = 0; j < length; ++j) {
      if (decoding_.source_mask && !decoding_.source_mask[b * length + j]) continue;
      const float* from = decoding_.encoded + (b * length + j) * width;
      float* to = s_.visible + count++ * width;
      for (int64_t c = 0; c < width; ++c) to[c] = from[c];
    }
    s_.source_length[row] = count;
    for (int i = 0; i < stack_.layer_count; ++i) {
      if (stack_.layers[i].cross_query.outputs == 0) continue;
      dense(stack_.layers[i].cross_key_value, {s_.visible, width}, count, s_.projected);
      const Cache cache = s_.cross.at(row, i);
      for (int j = 0; j < count; ++j)
        write(stack_, cache, j, s_.projected[j], s_.projected[j] + stack_.kv_heads * stack_.head_dim);
    }
  }

  // Reads the token of each of the first `active` places. What the output layer wants is in the rows that it returns.
  Rows operator()(int active, int position) const {
    embed(active, position);
    for (int i = 0; i < stack_.layer_count; ++i) {
      const PackedLayer& layer = stack_.layers[i];
      change(layer.self_norm, active, layer.output, s_.attended, [&](Rows x) {
        dense(layer.query_key_value, x, active, s_.wide);
        for (int r = 0; r < active; ++r) attend_self(i, position, s_.row[r], s_.wide[r], s_.attended[r]);
      });
      if (layer.cross_query.outputs > 0)
        change(layer.cross_norm, active, layer.cross_output, s_.attended, [&](Rows x) {
          dense(layer.cross_query, x, active, s_.wide, [&](Vector<float> v) { return v * scale_; });
          for (int r = 0; r < active; ++r)
            attend(stack_, s_.wide[r], s_.cross.at(s_.row[r], i), s_.source_length[s_.row[r]], {nullptr, 0},
                   s_.attention, s_.attended[r]);
        });
      change(layer.feed_forward_norm, active, layer.back, s_.wide,
             [&](Rows x) { dense_activated(layer.hidden, x, active, s_.wide, stack_.activation); });
    }
    if (!stack_.final_norm.gamma) return s_.x;
    for (int r = 0; r < active; ++r) normalise(stack_.final_norm, s_.x[r], stack_.width, s_.normal[r]);
    return s_.normal;
  }

 private:
  void embed(int active, int position) const {
    const int64_t width = stack_.width;
    for (int r = 0; r < active; ++r) {
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
  void change(const PackedNorm& norm, int active, const PackedDense& last, Rows result, const Part& part) const {
    if (stack_.norm_first)
      for (int r = 0; r < active; ++r) normalise(norm, s_.x[r], stack_.width, s_.normal[r]);
    part(stack_.norm_first ? s_.normal : s_.x);
    dense(last, result, active, s_.normal);
    for (int r = 0; r < active; ++r) {
      for (int c = 0; c < stack_.width; c += kLanes<float>)
        store(s_.x[r] + c, load(s_.x[r] + c) + load(s_.normal[r] + c));
      if (!stack_.norm_first) normalise(norm, s_.x[r], stack_.width, s_.x[r]);
    }
  }

  // `projected`: queries (N H), keys (K H) and values (K V) of one token.
  void attend_self(int layer, int position, int64_t row, float* projected, float* attended) const {
    const int queries = stack_.heads * stack_.head_dim, keys = stack_.kv_heads * stack_.head_dim;
    if (decoding_.rotation)
      rotate(decoding_.rotation + static_cast<int64_t>(position) * stack_.head_dim, stack_.heads + stack_.kv_heads,
             projected);
    for (int c = 0; c < queries; ++c) projected[c] *= scale_;
    const Cache cache = s_.self.at(row, layer);
    write(stack_, cache, position, projected + queries, projected + queries + keys);
    attend(stack_, projected, cache, position + 1, {decoding_.distance_bias, decoding_.length}, s_.attention, attended);
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
  const float scale_;
};

}  // namespace HEED_ISA
}  // namespace heed
