// The key/value cache, and attention to it.
//
// Keys are stored transposed (features down, positions across), values with positions down. So both products of
// attention read the cache in the order of the micro-kernel, all query heads of a key head share one pass over it, and
// a new token writes one column and one row in place.
#pragma once

#include "../kernels/decode.h"
#include "dense.h"

namespace heed {
namespace HEED_ISA {

// Keys (K, H, capacity) and values (K, capacity, round_up(V)); `capacity` is a multiple of the lanes. Positions not yet
// written may hold anything: they only reach lanes of scores that do not count.
struct Cache {
  float *keys, *values;
  int capacity;

  static int64_t key_numbers(const PackedStack& s, int64_t capacity) { return s.kv_heads * s.head_dim * capacity; }
  static int64_t value_numbers(const PackedStack& s, int64_t capacity) {
    return s.kv_heads * capacity * row_numbers(s.value_dim);
  }
};

// The caches of all layers, for one row (or source) after another.
struct Caches {
  float* data;
  int64_t key_numbers, numbers;  // in the keys of one cache, and in one cache
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

// Stores a key (K H) and a value (K V) at a position.
inline void write_cache(const PackedStack& s, const Cache& cache, int position, const float* key, const float* value) {
  for (int i = 0; i < s.kv_heads * s.head_dim; ++i)
    cache.keys[static_cast<int64_t>(i) * cache.capacity + position] = key[i];
  const int64_t wide = row_numbers(s.value_dim);
  for (int64_t k = 0; k < s.kv_heads; ++k) {
    float* to = cache.values + (k * cache.capacity + position) * wide;
    for (int c = 0; c < s.value_dim; ++c) to[c] = value[k * s.value_dim + c];
  }
}

// Where the beams of one source find their positions: beam k finds position j in the cache of beam slot[k * stride +
// j]. So a beam that continues another one copies a row of this table and no cache.
struct Ancestors {
  const uint8_t* slot;
  int64_t stride;
};

// Positions [begin, end) of one cache.
struct KeyRange {
  int begin, end;
};

// Positions of queries and keys: the query of row i is at query[i], or `at`; key j is at key[j], or j.
struct Positions {
  int at = 0;
  const int32_t *query = nullptr, *key = nullptr;

  int of_query(int row) const { return query ? query[row] : at; }
  int of_key(int j) const { return key ? key[j] : j; }
};

// Scratch for the attention of `rows` rows to `keys` keys, summed over all caches.
struct AttentionScratch {
  float *query, *scores, *weights, *output;
  KeyRange* ranges;  // the part of each cache that some row reads

  AttentionScratch(const PackedStack& s, int64_t rows, int64_t keys, Arena& arena) {
    const int64_t queries = rows * (s.heads / s.kv_heads);
    query = arena.take<float>(queries * s.head_dim);
    scores = arena.take<float>(queries * keys);
    weights = arena.take<float>(keys);
    output = arena.take<float>(queries * row_numbers(s.value_dim));
    ranges = arena.take<KeyRange>(max(rows, 1));
  }
};

// A bias of the scores, (N, head_stride): [n][centre + j - i] for a query at i and a key at j.
struct RelativeBias {
  const float* data = nullptr;  // null: none
  int64_t head_stride = 0, centre = 0;

  // The bias of keys at 0, 1, ..., or null.
  const float* row(int64_t head, int query) const {
    return data ? data + head * head_stride + centre - query : nullptr;
  }
};

// The keys that some rows see: the first `keys` of a cache or, if `causal`, those up to the query.
struct VisibleKeys {
  int keys;
  Positions positions = {};
  RelativeBias bias = {};
  bool causal = false;

  // The keys within `window` of the query of a row; window 0: no limit.
  KeyRange range_of(int row, int64_t window) const {
    const int query = positions.of_query(row);
    KeyRange range{0, causal ? static_cast<int>(min(keys, query + 1)) : keys};
    if (window == 0) return range;
    while (range.begin < range.end && query - positions.of_key(range.begin) >= window) ++range.begin;
    while (range.end > range.begin && positions.of_key(range.end - 1) - query >= window) --range.end;
    return range;
  }
};

// Attention of some rows to the caches of one layer: one cache for all rows, or one for each beam.
class CachedAttention {
 public:
  CachedAttention(const PackedStack& stack, int64_t rows, int64_t keys, Arena& arena)
      : stack_(stack), s_(stack, rows, keys, arena), scale_(1 / __builtin_sqrtf(static_cast<float>(stack.head_dim))) {}

  // attended (rows, N V) = attention of the queries (rows, N H) to the cache that they share; 0 if they see no key.
  void attend_shared(const PackedAttention& how, Matrix queries, int rows, const Cache& cache,
                     const VisibleKeys& visible, Matrix attended) const {
    // The window moves on from row to row.
    s_.ranges[0] = {visible.range_of(0, how.options.sliding_window).begin,
                    visible.range_of(rows - 1, how.options.sliding_window).end};
    if (visible.keys > 0) return attend(how, queries, rows, &cache, 1, visible, nullptr, attended);
    for (int r = 0; r < rows; ++r)
      for (int i = 0; i < stack_.heads * stack_.value_dim; ++i) attended[r][i] = 0;
  }

  // The same for beams, which share one position. Each has a cache, and its keys may lie in any of them.
  void attend_beams(const PackedAttention& how, Matrix queries, int beams, const Cache* caches,
                    const VisibleKeys& visible, const Ancestors& ancestors, Matrix attended) const {
    for (int i = 0; i < beams; ++i) s_.ranges[i] = {visible.keys, 0};
    for (int k = 0; k < beams; ++k)
      for (int j = visible.range_of(0, how.options.sliding_window).begin; j < visible.keys; ++j) {
        KeyRange& range = s_.ranges[ancestors.slot[k * ancestors.stride + j]];
        if (j < range.begin) range.begin = j;
        if (j >= range.end) range.end = j + 1;
      }
    attend(how, queries, beams, caches, beams, visible, &ancestors, attended);
  }

 private:
  void attend(const PackedAttention& how, Matrix queries, int rows, const Cache* caches, int cache_count,
              const VisibleKeys& visible, const Ancestors* ancestors, Matrix attended) const {
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
        const int begin = s_.ranges[i].begin / kLanes<float> * kLanes<float>, end = s_.ranges[i].end;
        if (begin < end)
          product<float>({s_.query, head_dim, 1}, count, caches[i].keys + k * head_dim * capacity + begin, capacity,
                         s_.scores + i * capacity + begin, scores_row, round_up(end - begin, kLanes<float>), head_dim,
                         false);
      }
      for (int r = 0; r < count; ++r) {
        const int row = r / queries_per_kv;
        const int64_t head = first_head + r % queries_per_kv;
        const KeyRange own = visible.range_of(row, how.options.sliding_window);
        float* scores = s_.scores + r * scores_row;
        if (!ancestors) {
          softmax(how, head, row, visible, s_.ranges[0], own, scores);
          continue;
        }
        const uint8_t* slot = ancestors->slot + row * ancestors->stride;
        for (int j = own.begin; j < own.end; ++j) s_.weights[j] = scores[slot[j] * capacity + j];
        softmax(how, head, row, visible, own, own, s_.weights);
        for (int i = 0; i < cache_count; ++i)
          for (int j = s_.ranges[i].begin; j < s_.ranges[i].end; ++j)
            scores[i * capacity + j] = slot[j] == i ? s_.weights[j] : 0;
      }
      bool accumulate = false;
      for (int i = 0; i < cache_count; ++i) {
        const KeyRange range = s_.ranges[i];
        if (range.begin >= range.end) continue;
        product<float>({s_.scores + i * capacity + range.begin, scores_row, 1}, count,
                       caches[i].values + (k * capacity + range.begin) * wide, wide, s_.output, wide, wide,
                       range.end - range.begin, accumulate);
        accumulate = true;
      }
      for (int r = 0; r < count; ++r) {
        float* to = attended[r / queries_per_kv] + (first_head + r % queries_per_kv) * value_dim;
        for (int c = 0; c < value_dim; c += kLanes<float>)
          store_some(to + c, value_dim - c, load(s_.output + r * wide + c));
      }
    }
  }

  // Turns the scores of a range of keys into weights, 0 outside of the row's own range.
  void softmax(const PackedAttention& how, int64_t head, int row, const VisibleKeys& visible, KeyRange keys,
               KeyRange own, float* scores) const {
    const int begin = keys.begin / kLanes<float> * kLanes<float>;
    if (const float cap = static_cast<float>(how.options.soft_cap); cap > 0)
      for (int j = begin; j < keys.end; j += kLanes<float>)
        store(scores + j, cap * tanh<float>(load(scores + j) / cap));
    if (const float* bias = visible.bias.row(head, visible.positions.of_query(row)))
      for (int j = own.begin; j < own.end; ++j) scores[j] += bias[visible.positions.of_key(j)];
    for (int j = begin; j < own.begin; ++j) scores[j] = -kInfinity<float>;
    for (int j = own.end; j < keys.end; ++j) scores[j] = -kInfinity<float>;
    // A sink is one more score, whose weight is dropped.
    const float* sinks = how.options.sinks;
    float row_max = sinks ? sinks[head] : -kInfinity<float>, row_sum = sinks ? 1.0f : 0.0f;
    online_softmax_row(scores + begin, keys.end - begin, &row_max, &row_sum, s_.output, 0);
    const float factor = row_sum == 0 ? 0 : 1 / row_sum;
    for (int j = begin; j < keys.end; j += kLanes<float>) store(scores + j, load(scores + j) * factor);
  }

  const PackedStack& stack_;
  const AttentionScratch s_;
  const float scale_;
};

}  // namespace HEED_ISA
}  // namespace heed
