// Keys and values that one row of a batch keeps, and one token's attention to them.
//
// Keys lie transposed, features down and positions across, and values with positions down: so both products of
// attention read the second matrix as the micro-kernel wants it, all query heads that share a key head go over it
// together, and a new token writes one column and one row, in place.
#pragma once

#include "../kernels/decode.h"
#include "dense.h"

namespace heed {
namespace HEED_ISA {

// Of `capacity` positions, a multiple of the lanes: keys (K, H, capacity), values (K, capacity, round_up(V)). What has
// not been written may hold anything: it meets only other lanes of scores that count.
struct Cache {
  float *keys, *values;
  int capacity;

  static int64_t key_numbers(const PackedStack& s, int64_t capacity) { return s.kv_heads * s.head_dim * capacity; }
  static int64_t value_numbers(const PackedStack& s, int64_t capacity) {
    return s.kv_heads * capacity * row_numbers(s.value_dim);
  }
};

// The caches of all layers, a row or a source after the other.
struct Caches {
  float* data;
  int64_t key_numbers, numbers;  // of the keys of one cache, and of one cache
  int layers, capacity;

  Caches(const PackedStack& s, int64_t rows, int64_t length, Arena& arena, int layer_count)
      : layers(layer_count), capacity(static_cast<int>(row_numbers(length))) {
    key_numbers = Cache::key_numbers(s, capacity);
    numbers = key_numbers + Cache::value_numbers(s, capacity);
    data = arena.take<float>(rows * layers * numbers);
  }
  Caches(const PackedStack& s, int64_t rows, int64_t length, Arena& arena)
      : Caches(s, rows, length, arena, s.layer_count) {}
  Cache at(int64_t row, int layer) const {
    float* keys = data + (row * layers + layer) * numbers;
    return {keys, keys + key_numbers, capacity};
  }
};

// Puts a key (K H) and a value (K V) at a position.
inline void write(const PackedStack& s, const Cache& cache, int position, const float* key, const float* value) {
  for (int i = 0; i < s.kv_heads * s.head_dim; ++i)
    cache.keys[static_cast<int64_t>(i) * cache.capacity + position] = key[i];
  const int64_t wide = row_numbers(s.value_dim);
  for (int64_t k = 0; k < s.kv_heads; ++k) {
    float* to = cache.values + (k * cache.capacity + position) * wide;
    for (int c = 0; c < s.value_dim; ++c) to[c] = value[k * s.value_dim + c];
  }
}

// Which of the caches of one source holds each position of each of its beams: beam k finds position j in the cache of
// beam slot[k * stride + j]. So a beam that goes on from another one takes over a row of this table, and no cache.
struct Ancestors {
  const uint8_t* slot;
  int64_t stride;
};

// Positions [begin, end) of one cache.
struct Stretch {
  int begin, end;
};

// Where queries and keys stand: row i's query at `at`, or at query[i]; key j at j, or at key[j].
struct Places {
  int at;
  const int32_t *query, *key;

  int of_query(int row) const { return query ? query[row] : at; }
  int of_key(int j) const { return key ? key[j] : j; }
};

// Memory for the attention of so many rows to so many keys, in all caches together.
struct AttentionScratch {
  float *query, *scores, *weights, *output;
  Stretch* stretches;  // of each cache, which part of it some row reads

  AttentionScratch(const PackedStack& s, int64_t rows, int64_t keys, Arena& arena) {
    const int64_t queries = rows * (s.heads / s.kv_heads);
    query = arena.take<float>(queries * s.head_dim);
    scores = arena.take<float>(queries * keys);
    weights = arena.take<float>(keys);
    output = arena.take<float>(queries * row_numbers(s.value_dim));
    stretches = arena.take<Stretch>(most(rows, 1));
  }
};

// Numbers (N, head_stride) that are added to the scores: [n][centre + j - i] for a query at i and a key at j.
struct RelativeBias {
  const float* data = nullptr;  // none
  int64_t head_stride = 0, centre = 0;

  // For keys at 0, 1, ...
  const float* of(int64_t head, int query) const { return data ? data + head * head_stride + centre - query : nullptr; }
};

// What some rows attend to: so many keys at these places; if it is causal, keys at 0, 1, ... up to the query.
struct Seen {
  int keys;
  Places places;
  RelativeBias bias;
  bool causal;

  // Those that a row sees, with this window.
  Stretch of(int row, int window) const {
    const int query = places.of_query(row);
    Stretch seen{0, causal ? static_cast<int>(least(keys, query + 1)) : keys};
    if (window == 0) return seen;
    while (seen.begin < seen.end && query - places.of_key(seen.begin) >= window) ++seen.begin;
    while (seen.end > seen.begin && places.of_key(seen.end - 1) - query >= window) --seen.end;
    return seen;
  }
};

// The caches of one layer that some rows attend to together: one for all, or one for each beam and who reads what.
class Attention {
 public:
  Attention(const PackedStack& stack, const AttentionScratch& scratch)
      : stack_(stack), s_(scratch), scale_(1 / __builtin_sqrtf(static_cast<float>(stack.head_dim))) {}

  // attended (rows, N V) = what the queries (rows, N H) see of the first positions of the cache that all share; 0 where
  // there are none.
  void shared(const PackedAttention& how, Rows queries, int rows, const Cache& cache, const Seen& seen,
              Rows attended) const {
    // Windows move on from row to row.
    s_.stretches[0] = {seen.of(0, how.window).begin, seen.of(rows - 1, how.window).end};
    if (seen.keys > 0) return over(how, queries, rows, &cache, 1, seen, nullptr, attended);
    for (int r = 0; r < rows; ++r)
      for (int i = 0; i < stack_.heads * stack_.value_dim; ++i) attended[r][i] = 0;
  }

  // The same for beams, which stand at one place; each has a cache, and finds its positions in all of them.
  void of_beams(const PackedAttention& how, Rows queries, int beams, const Cache* caches, const Seen& seen,
                const Ancestors& ancestors, Rows attended) const {
    for (int i = 0; i < beams; ++i) s_.stretches[i] = {seen.keys, 0};
    for (int k = 0; k < beams; ++k)
      for (int j = seen.of(0, how.window).begin; j < seen.keys; ++j) {
        Stretch& stretch = s_.stretches[ancestors.slot[k * ancestors.stride + j]];
        if (j < stretch.begin) stretch.begin = j;
        if (j >= stretch.end) stretch.end = j + 1;
      }
    over(how, queries, beams, caches, beams, seen, &ancestors, attended);
  }

 private:
  void over(const PackedAttention& how, Rows queries, int rows, const Cache* caches, int cache_count, const Seen& seen,
            const Ancestors* ancestors, Rows attended) const {
    const int queries_per_kv = stack_.heads / stack_.kv_heads, count = rows * queries_per_kv;
    const int head_dim = stack_.head_dim, value_dim = stack_.value_dim, wide = round_up(value_dim, kLanes<float>);
    const int capacity = caches[0].capacity;
    const int64_t scores_row = static_cast<int64_t>(cache_count) * capacity;
    for (int64_t k = 0; k < stack_.kv_heads; ++k) {
      const int64_t first_head = k * queries_per_kv;
      for (int r = 0; r < rows; ++r)
        for (int c = 0; c < queries_per_kv * head_dim; ++c)
          s_.query[r * queries_per_kv * head_dim + c] = queries[r][first_head * head_dim + c] * scale_;
      for (int i = 0; i < cache_count; ++i) {
        const int begin = s_.stretches[i].begin / kLanes<float> * kLanes<float>, end = s_.stretches[i].end;
        if (begin < end)
          product<float>({s_.query, head_dim, 1}, count, caches[i].keys + k * head_dim * capacity + begin, capacity,
                         s_.scores + i * capacity + begin, scores_row, round_up(end - begin, kLanes<float>), head_dim,
                         false);
      }
      for (int r = 0; r < count; ++r) {
        const int row = r / queries_per_kv;
        const int64_t head = first_head + r % queries_per_kv;
        const Stretch visible = seen.of(row, how.window);
        float* scores = s_.scores + r * scores_row;
        if (!ancestors) {
          softmax(how, head, row, seen, s_.stretches[0], visible, scores);
          continue;
        }
        const uint8_t* slot = ancestors->slot + row * ancestors->stride;
        for (int j = visible.begin; j < visible.end; ++j) s_.weights[j] = scores[slot[j] * capacity + j];
        softmax(how, head, row, seen, visible, visible, s_.weights);
        for (int i = 0; i < cache_count; ++i)
          for (int j = s_.stretches[i].begin; j < s_.stretches[i].end; ++j)
            scores[i * capacity + j] = slot[j] == i ? s_.weights[j] : 0;
      }
      bool accumulate = false;
      for (int i = 0; i < cache_count; ++i) {
        const Stretch stretch = s_.stretches[i];
        if (stretch.begin >= stretch.end) continue;
        product<float>({s_.scores + i * capacity + stretch.begin, scores_row, 1}, count,
                       caches[i].values + (k * capacity + stretch.begin) * wide, wide, s_.output, wide, wide,
                       stretch.end - stretch.begin, accumulate);
        accumulate = true;
      }
      for (int r = 0; r < count; ++r) {
        float* to = attended[r / queries_per_kv] + (first_head + r % queries_per_kv) * value_dim;
        for (int c = 0; c < value_dim; c += kLanes<float>)
          store_some(to + c, value_dim - c, load(s_.output + r * wide + c));
      }
    }
  }

  // The scores of a stretch of keys become weights, 0 for those that the row does not see.
  void softmax(const PackedAttention& how, int64_t head, int row, const Seen& seen, Stretch keys, Stretch visible,
               float* scores) const {
    const int begin = keys.begin / kLanes<float> * kLanes<float>;
    if (how.soft_cap > 0)
      for (int j = begin; j < keys.end; j += kLanes<float>)
        store(scores + j, how.soft_cap * tanh<float>(load(scores + j) / how.soft_cap));
    if (const float* bias = seen.bias.of(head, seen.places.of_query(row)))
      for (int j = visible.begin; j < visible.end; ++j) scores[j] += bias[seen.places.of_key(j)];
    for (int j = begin; j < visible.begin; ++j) scores[j] = -kInfinity<float>;
    for (int j = visible.end; j < keys.end; ++j) scores[j] = -kInfinity<float>;
    // A sink is one more score, whose weight nothing is done with.
    float row_max = how.sinks ? how.sinks[head] : -kInfinity<float>, row_sum = how.sinks ? 1.0f : 0.0f;
    online_softmax_row(scores + begin, keys.end - begin, &row_max, &row_sum, s_.output, 0);
    const float factor = row_sum == 0 ? 0 : 1 / row_sum;
    for (int j = begin; j < keys.end; j += kLanes<float>) store(scores + j, load(scores + j) * factor);
  }

  const PackedStack& stack_;
  const AttentionScratch& s_;
  const float scale_;
};

}  // namespace HEED_ISA
}  // namespace heed
