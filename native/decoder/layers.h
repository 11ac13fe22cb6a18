// The layers of an encoder or a decoder, applied to rows of tokens.
#pragma once

#include "cache.h"
#include "parts.h"

namespace heed {
namespace HEED_ISA {

inline Matrix take_matrix(Arena& arena, int64_t rows, int64_t numbers) {
  const int64_t stride = Matrix::stride_of(numbers);
  return {arena.take<float>(rows * stride), stride};
}

// A stack of layers, and memory for the rows that go through it together. Rows are padded with 0 to full vectors.
struct Layers {
  const PackedStack& stack;
  Matrix x, normal, wide, attended;  // (rows, D), (rows, D), the widest projection of a layer, (rows, N V)
  Matrix aside;                      // (rows, D): the input of a parallel feed-forward part
  CachedAttention attention;

  // `queries` rows attend together, to at most `keys` keys.
  Layers(const PackedStack& s, int64_t rows, int64_t queries, int64_t keys, Arena& arena)
      : stack(s),
        x(take_matrix(arena, rows, s.width)),
        normal(take_matrix(arena, rows, s.width)),
        wide(take_matrix(arena, rows, widest(s))),
        attended(take_matrix(arena, rows, s.heads * s.value_dim)),
        aside(take_matrix(arena, has_parallel(s) ? rows : 0, s.width)),
        attention(s, queries, keys, arena) {}

  // x = the embedding of the token, plus that of its position unless null; normalised if the stack asks for it.
  void embed(int row, int32_t token, const float* position) const {
    const float* from = stack.embedding + int64_t{token} * stack.width;
    for (int c = 0; c < stack.width; c += kLanes<float>) {
      Vector<float> v = load_some(from + c, stack.width - c) * stack.embedding_scale;
      if (position) v += load_some(position + c, stack.width - c);
      store(x[row] + c, v);
    }
    if (stack.embedding_norm.gamma) normalise(stack.embedding_norm, x[row], stack.width, x[row]);
  }

  // x = x + last(part(x)), normalised before the part, before the sum or after it; part(input) writes `result`.
  template <class Part>
  void add_residual(const PackedLayer& layer, const PackedNorm& norm, const PackedNorm& post_norm, int rows,
                    const PackedDense& last, Matrix result, const Part& part) const {
    part(layer.norm_first ? normalised(norm, rows, normal) : x);
    apply_dense(stack.team, last, result, rows, normal);
    for (int r = 0; r < rows; ++r) {
      if (post_norm.gamma) normalise(post_norm, normal[r], stack.width, normal[r]);
      for (int c = 0; c < stack.width; c += kLanes<float>) store(x[r] + c, load(x[r] + c) + load(normal[r] + c));
      if (!layer.norm_first) normalise(norm, x[r], stack.width, x[r]);
    }
  }

  // The attention of a layer: attend() writes the attention of the queries in `wide` to `attended`.
  template <class Attend>
  void apply_attention(const PackedLayer& layer, const PackedNorm& norm, const PackedAttention& how, int rows,
                       const Attend& attend) const {
    const bool own = &how == &layer.self;
    if (own && layer.parallel) normalised(layer.feed_forward_norm, rows, aside);
    add_residual(layer, norm, own ? layer.self_post_norm : PackedNorm{}, rows, how.output, attended, [&](Matrix from) {
      apply_dense(stack.team, how.projected, from, rows, wide);
      attend();
      if (how.gate_at > 0)
        for (int r = 0; r < rows; ++r) gate(wide[r] + how.gate_at, attended[r]);
    });
  }

  void apply_feed_forward(const PackedLayer& layer, int rows) const {
    add_residual(layer, layer.feed_forward_norm, layer.feed_forward_post_norm, rows, layer.back, wide,
                 [&](Matrix from) {
                   apply_activated_dense(stack.team, layer.hidden, layer.parallel ? aside : from, rows, wide,
                                         layer.activation, layer.gated);
                 });
  }

  // All layers of a decoder: attend_self(layer) and attend_source(layer) write the attention of the queries in `wide`
  // to `attended`.
  template <class AttendSelf, class AttendSource>
  void decode(int rows, const AttendSelf& attend_self, const AttendSource& attend_source) const {
    for (int i = 0; i < stack.layer_count; ++i) {
      const PackedLayer& layer = stack.layers[i];
      apply_attention(layer, layer.self_norm, layer.self, rows, [&] { attend_self(i); });
      if (layer.cross.output.outputs > 0)
        apply_attention(layer, layer.cross_norm, layer.cross, rows, [&] {
          for (int r = 0; r < rows; ++r) normalise_heads(layer.cross.query_norm, wide[r], stack.heads, stack.head_dim);
          attend_source(i);
        });
      apply_feed_forward(layer, rows);
    }
  }

  // The rows after the last layer, with the final norm.
  Matrix result(int rows) const {
    if (!stack.final_norm.gamma) return x;
    for (int r = 0; r < rows; ++r) normalise(stack.final_norm, x[r], stack.width, normal[r]);
    return normal;
  }

  // Normalises and rotates query and key in a row of `wide`, and stores its key and value at a position of a cache.
  void cache_row(const PackedAttention& how, int row, const float* angles, const Cache& cache, int position) const {
    float* key = wide[row] + stack.heads * stack.head_dim;  // after the queries (N H)
    normalise_heads(how.query_norm, wide[row], stack.heads, stack.head_dim);
    normalise_heads(how.key_norm, key, stack.kv_heads, stack.head_dim);
    rotate(row, angles);
    write_cache(stack, cache, position, key, key + stack.kv_heads * stack.head_dim);
  }

  // Attention of the queries in `wide`, into `attended`: part(i), a SharedCache, describes some rows for each i <
  // count.
  template <class Part>
  void attend(const PackedAttention& how, int count, const Part& part) const {
    attention.attend_shared(how, wide, count, part, attended);
  }

 private:
  Matrix normalised(const PackedNorm& norm, int rows, Matrix to) const {
    for (int r = 0; r < rows; ++r) normalise(norm, x[r], stack.width, to[r]);
    return to;
  }

  // Rotates each pair of features (c, c + P/2) of the queries and keys in a row of `wide`, P = `rotary_dim`. `angles`:
  // cosines, then sines; null: no rotation.
  void rotate(int row, const float* angles) const {
    if (!angles) return;
    const int half = stack.rotary_dim / 2;
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

  static bool has_parallel(const PackedStack& s) {
    for (int i = 0; i < s.layer_count; ++i)
      if (s.layers[i].parallel) return true;
    return false;
  }

  static int64_t widest(const PackedStack& s) {
    int64_t widest = 0;
    for (int i = 0; i < s.layer_count; ++i) {
      const PackedLayer& layer = s.layers[i];
      widest = max(widest, max(layer.self.projected.outputs, layer.hidden.outputs));
      widest = max(widest, layer.cross.projected.outputs);
    }
    return widest;
  }
};

// A row of a table of `numbers` columns, or null if there is no table.
inline const float* table_row(const float* table, int64_t row, int64_t numbers) {
  return table ? table + row * numbers : nullptr;
}

// The angles of an attention at a position, of tables (R, count, rotary_dim); null where it rotates nothing.
inline const float* angles_at(const PackedStack& stack, const PackedAttention& how, const float* rotation,
                              int64_t count, int64_t position) {
  return how.rotation < 0 ? nullptr : table_row(rotation, how.rotation * count + position, stack.rotary_dim);
}

}  // namespace HEED_ISA
}  // namespace heed
