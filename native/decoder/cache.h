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

// The caches of all layers of all rows.
struct Caches {
  float* data;
  int64_t key_numbers, numbers;  // of the keys of one cache, and of one cache
  int layers, capacity;

  Caches(const PackedStack& s, int64_t rows, int64_t length, Arena& arena)
      : layers(s.layer_count), capacity(static_cast<int>(row_numbers(length))) {
    key_numbers = Cache::key_numbers(s, capacity);
    numbers = key_numbers + Cache::value_numbers(s, capacity);
    data = arena.take<float>(rows * layers * numbers);
  }
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

// Memory for the attention of one token: as many rows as query heads share a key head.
struct AttentionScratch {
  float *scores, *output;

  AttentionScratch(const PackedStack& s, int64_t most_keys, Arena& arena)
      : scores(arena.take<float>(s.heads / s.kv_heads * row_numbers(most_keys))),
        output(arena.take<float>(s.heads / s.kv_heads * row_numbers(s.value_dim))) {}
};

// A number for each head and distance, added to the scores.
struct DistanceBias {
  const float* data;  // or null
  int64_t head_stride;
};

// attended (N V) = what one token sees of the first `keys` positions; 0 where there are none. `query` (N H) is scaled.
inline void attend(const PackedStack& s, const float* query, const Cache& cache, int keys, DistanceBias bias,
                   const AttentionScratch& scratch, float* attended) {
  const int queries_per_kv = s.heads / s.kv_heads, value_dim = s.value_dim;
  if (keys == 0) {
    for (int i = 0; i < s.heads * value_dim; ++i) attended[i] = 0;
    return;
  }
  const int columns = round_up(keys, kLanes<float>), capacity = cache.capacity;
  const int wide = round_up(value_dim, kLanes<float>);
  for (int64_t k = 0; k < s.kv_heads; ++k) {
    const int64_t first_head = k * queries_per_kv;
    product<float>({query + first_head * s.head_dim, s.head_dim, 1}, queries_per_kv,
                   cache.keys + k * s.head_dim * capacity, capacity, scratch.scores, capacity, columns, s.head_dim,
                   false);
    for (int g = 0; g < queries_per_kv; ++g) {
      float *scores = scratch.scores + static_cast<int64_t>(g) * capacity, row_max = -kInfinity<float>, row_sum = 0;
      if (bias.data) {
        const float* of_head = bias.data + (first_head + g) * bias.head_stride;
        for (int j = 0; j < keys; ++j) scores[j] += of_head[keys - 1 - j];
      }
      online_softmax_row(scores, keys, &row_max, &row_sum, scratch.output, 0);
      const float factor = row_sum == 0 ? 0 : 1 / row_sum;
      for (int j = 0; j < columns; j += kLanes<float>) store(scores + j, load(scores + j) * factor);
    }
    product<float>({scratch.scores, capacity, 1}, queries_per_kv, cache.values + k * capacity * wide, wide,
                   scratch.output, wide, wide, keys, false);
    for (int g = 0; g < queries_per_kv; ++g)
      for (int c = 0; c < value_dim; c += kLanes<float>)
        store_some(attended + (first_head + g) * value_dim + c, value_dim - c, load(scratch.output + g * wide + c));
  }
}

}  // namespace HEED_ISA
}  // namespace heed
