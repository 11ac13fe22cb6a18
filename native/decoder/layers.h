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
  Matrix routed, chosen, made;       // of experts, (rows, E), (rows, D), (rows, D): see add_experts
  int32_t* takers;                   // (rows,)
  CachedAttention attention;

  // `queries` rows attend together, to at most `keys` keys.
  Layers(const PackedStack& s, int64_t rows, int64_t queries, int64_t keys, Arena& arena)
      : stack(s),
        x(take_matrix(arena, rows, s.width)),
        normal(take_matrix(arena, rows, s.width)),
        wide(take_matrix(arena, rows, widest(s))),
        attended(take_matrix(arena, rows, s.heads * s.value_dim)),
        aside(take_matrix(arena, has_parallel(s) ? rows : 0, s.width)),
        routed(take_matrix(arena, most_experts(s) > 0 ? rows : 0, most_experts(s))),
        chosen(take_matrix(arena, most_experts(s) > 0 ? rows : 0, s.width)),
        made(take_matrix(arena, most_experts(s) > 0 ? rows : 0, s.width)),
        takers(arena.take<int32_t>(most_experts(s) > 0 ? rows : 0)),
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
    add(layer, norm, post_norm, rows);
  }

  // x = x + normal, normalised before the sum or after it.
  void add(const PackedLayer& layer, const PackedNorm& norm, const PackedNorm& post_norm, int rows) const {
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
    if (layer.experts.count > 0) return apply_experts(layer, rows);
    add_residual(layer, layer.feed_forward_norm, layer.feed_forward_post_norm, rows, layer.back, wide,
                 [&](Matrix from) {
                   apply_activated_dense(stack.team, layer.hidden, layer.parallel ? aside : from, rows, wide,
                                         layer.activation, layer.gated);
                 });
  }

  // A mixture of experts. The rows that take an expert go through it together; each row sums its experts in order.
  void apply_experts(const PackedLayer& layer, int rows) const {
    const PackedExperts& experts = layer.experts;
    const Matrix from = layer.parallel     ? aside
                        : layer.norm_first ? normalised(layer.feed_forward_norm, rows, normal)
                                           : x;
    // `normal` becomes the sum.
    if (!layer.parallel) copy_rows(from, rows, aside);
    apply_dense(stack.team, experts.router, aside, rows, routed);
    for (int r = 0; r < rows; ++r) route(experts, routed[r]);
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < stack.width; c += kLanes<float>) store(normal[r] + c, Vector<float>{});
    for (int e = 0; e < experts.count; ++e) {
      int count = 0;
      for (int r = 0; r < rows; ++r)
        if (routed[r][e] != 0) takers[count++] = r;  // NaN too
      if (count == 0) continue;
      for (int i = 0; i < count; ++i) copy_row(aside[takers[i]], chosen[i]);
      apply_expert(layer, experts.parts[e], count);
      for (int i = 0; i < count; ++i) add_weighted(made[i], routed[takers[i]][e], normal[takers[i]]);
    }
    if (experts.shared.back.outputs > 0) {
      copy_rows(aside, rows, chosen);
      apply_expert(layer, experts.shared, rows);
      if (experts.shared_gated) apply_dense(stack.team, experts.shared_gate, aside, rows, routed);
      for (int r = 0; r < rows; ++r)
        add_weighted(made[r], experts.shared_gated ? sigmoid(broadcast(routed[r][0]))[0] : 1.0f, normal[r]);
    }
    add(layer, layer.feed_forward_norm, layer.feed_forward_post_norm, rows);
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
  // made = the part of the first `rows` rows of `chosen`.
  void apply_expert(const PackedLayer& layer, const PackedExpert& expert, int rows) const {
    apply_activated_dense(stack.team, expert.hidden, chosen, rows, wide, layer.activation, layer.gated);
    apply_dense(stack.team, expert.back, wide, rows, made);
  }

  // Turns the logits of the experts into the weights of the chosen ones, 0 of the others. Of equals the first is
  // chosen.
  static void route(const PackedExperts& experts, float* logits) {
    const int count = experts.count;
    float most = logits[0], total = 0, kept = 0;
    for (int e = 1; e < count; ++e) most = logits[e] > most ? logits[e] : most;
    for (int e = 0; e < count; ++e) total += logits[e] = exponential(broadcast(logits[e] - most))[0];
    for (int e = 0; e < count; ++e) logits[e] /= total;
    // Chosen ones are marked by their sign: -1 - share.
    for (int k = 0; k < experts.top_k; ++k) {
      int best = -1;
      for (int e = 0; e < count; ++e)
        if (logits[e] >= 0 && (best < 0 || logits[e] > logits[best])) best = e;
      if (best < 0) break;
      kept += logits[best];
      logits[best] = -1 - logits[best];
    }
    if (!(total > 0)) kept = logits[0] = total;  // NaN stays NaN
    for (int e = 0; e < count && total > 0; ++e) {
      const float share = logits[e] < 0 ? -1 - logits[e] : 0;
      logits[e] = experts.normalized && kept > 0 ? share / kept : share;
    }
  }

  void copy_row(const float* from, float* to) const {
    for (int c = 0; c < stack.width; c += kLanes<float>) store(to + c, load(from + c));
  }
  void copy_rows(Matrix from, int rows, Matrix to) const {
    for (int r = 0; r < rows; ++r) copy_row(from[r], to[r]);
  }
  void add_weighted(const float* from, float weight, float* to) const {
    for (int c = 0; c < stack.width; c += kLanes<float>) store(to + c, load(to + c) + weight * load(from + c));
  }

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

  static int64_t most_experts(const PackedStack& s) {
    int64_t most = 0;
    for (int i = 0; i < s.layer_count; ++i) most = max(most, int64_t{s.layers[i].experts.count});
    return most;
  }

  static bool has_parallel(const PackedStack& s) {
    for (int i = 0; i < s.layer_count; ++i)
      if (s.layers[i].parallel || s.layers[i].experts.count > 0) return true;
    return false;
  }

  static int64_t widest(const PackedStack& s) {
    int64_t widest = 0;
    for (int i = 0; i < s.layer_count; ++i) {
      const PackedLayer& layer = s.layers[i];
      widest = max(widest, max(layer.self.projected.outputs, layer.hidden.outputs));
      widest = max(widest, layer.cross.projected.outputs);
      widest = max(widest, layer.experts.shared.hidden.outputs);
      for (int e = 0; e < layer.experts.count; ++e) widest = max(widest, layer.experts.parts[e].hidden.outputs);
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
