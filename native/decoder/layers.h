// What a layer does to some rows, whichever stack it belongs to.
#pragma once

#include "parts.h"

namespace heed {
namespace HEED_ISA {

inline Rows take_rows(Arena& arena, int64_t rows, int64_t numbers) {
  const int64_t stride = Rows::stride_of(numbers);
  return {arena.take<float>(rows * stride), stride};
}

// A stack of layers, and memory for the rows that go through it together. Rows hold 0 up to the next full vector.
struct Layers {
  const PackedStack& stack;
  Rows x, normal, wide, attended;  // (rows, D), (rows, D), the widest that a layer has, (rows, N V)

  Layers(const PackedStack& s, int64_t rows, Arena& arena)
      : stack(s),
        x(take_rows(arena, rows, s.width)),
        normal(take_rows(arena, rows, s.width)),
        wide(take_rows(arena, rows, widest(s))),
        attended(take_rows(arena, rows, s.heads * s.value_dim)) {}

  // x = the token's embedding, and what its position adds if that is given.
  void embed(int row, int32_t token, const float* position) const {
    const float* from = stack.embedding + int64_t{token} * stack.width;
    for (int c = 0; c < stack.width; c += kLanes<float>) {
      Vector<float> v = load_some(from + c, stack.width - c) * stack.embedding_scale;
      if (position) v += load_some(position + c, stack.width - c);
      store(x[row] + c, v);
    }
  }

  // x = x + last(part(x)), normalised before the part or after the sum; the part leaves its result in `result`.
  template <class Part>
  void change(const PackedLayer& layer, const PackedNorm& norm, int rows, const PackedDense& last, Rows result,
              const Part& part) const {
    if (layer.norm_first)
      for (int r = 0; r < rows; ++r) normalise(norm, x[r], stack.width, normal[r]);
    part(layer.norm_first ? normal : x);
    dense(last, result, rows, normal);
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < stack.width; c += kLanes<float>) store(x[r] + c, load(x[r] + c) + load(normal[r] + c));
      if (!layer.norm_first) normalise(norm, x[r], stack.width, x[r]);
    }
  }

  // A step whose part is an attention: attend() leaves in `attended` what the queries in `wide` see.
  template <class Attend>
  void attention(const PackedLayer& layer, const PackedNorm& norm, const PackedAttention& how, int rows,
                 const Attend& attend) const {
    change(layer, norm, rows, how.output, attended, [&](Rows from) {
      dense(how.projected, from, rows, wide);
      attend();
      if (how.gate_at > 0)
        for (int r = 0; r < rows; ++r) gate(wide[r] + how.gate_at, attended[r]);
    });
  }

  void feed_forward(const PackedLayer& layer, int rows) const {
    change(layer, layer.feed_forward_norm, rows, layer.back, wide,
           [&](Rows from) { dense_activated(layer.hidden, from, rows, wide, layer.activation, layer.gated); });
  }

  // All layers of a decoder: own(layer) and source(layer) leave in `attended` what the queries in `wide` see of their
  // targets and of their sources.
  template <class Own, class Source>
  void decode(int rows, const Own& own, const Source& source) const {
    for (int i = 0; i < stack.layer_count; ++i) {
      const PackedLayer& layer = stack.layers[i];
      attention(layer, layer.self_norm, layer.self, rows, [&] { own(i); });
      if (layer.cross.output.outputs > 0)
        attention(layer, layer.cross_norm, layer.cross, rows, [&] {
          for (int r = 0; r < rows; ++r) normalise_heads(layer.cross.query_norm, wide[r], stack.heads, stack.head_dim);
          source(i);
        });
      feed_forward(layer, rows);
    }
  }

  // What comes after the last layer.
  Rows result(int rows) const {
    if (!stack.final_norm.gamma) return x;
    for (int r = 0; r < rows; ++r) normalise(stack.final_norm, x[r], stack.width, normal[r]);
    return normal;
  }

  // Where keys and values begin in a row of `wide`, after the queries (N H).
  int keys_at() const { return stack.heads * stack.head_dim; }
  int values_at() const { return keys_at() + stack.kv_heads * stack.head_dim; }

  // Normalises queries and keys in a row of `wide`, and turns them.
  void place(const PackedAttention& how, int row, const float* angles) const {
    normalise_heads(how.query_norm, wide[row], stack.heads, stack.head_dim);
    normalise_heads(how.key_norm, wide[row] + keys_at(), stack.kv_heads, stack.head_dim);
    rotate(row, angles);
  }

 private:
  // Turns each pair of features (c, c + H/2) of the queries and keys in a row of `wide` by the angles whose cosines,
  // then sines are given; or does nothing.
  void rotate(int row, const float* angles) const {
    if (!angles) return;
    const int half = stack.head_dim / 2;
    float* heads = wide[row];
    for (int n = 0; n < stack.heads + stack.kv_heads; ++n, heads += stack.head_dim)
      for (int c = 0; c < half; ++c) {
        const float first = heads[c], second = heads[c + half], cosine = angles[c], sine = angles[c + half];
        heads[c] = first * cosine - second * sine;
        heads[c + half] = first * sine + second * cosine;
      }
  }

  // heads (N V) times sigmoid(x).
  void gate(const float* x, float* heads) const {
    for (int c = 0, count = stack.heads * stack.value_dim; c < count; c += kLanes<float>)
      store_some(heads + c, count - c, load_some(heads + c, count - c) * sigmoid(load_some(x + c, count - c)));
  }

  static int64_t widest(const PackedStack& s) {
    int64_t widest = 0;
    for (int i = 0; i < s.layer_count; ++i) {
      const PackedLayer& layer = s.layers[i];
      widest = most(widest, most(layer.self.projected.outputs, layer.hidden.outputs));
      widest = most(widest, layer.cross.projected.outputs);
    }
    return widest;
  }
};

// The row of a table of so many numbers each, or null where there is no table.
inline const float* table_row(const float* table, int64_t row, int64_t numbers) {
  return table ? table + row * numbers : nullptr;
}

}  // namespace HEED_ISA
}  // namespace heed
