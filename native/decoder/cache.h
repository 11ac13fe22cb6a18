// The key/value cache, and attention to it.
//
// Keys are stored transposed. So both products of attention read the cache in the order of the micro-kernel, all query
// heads of a key head share one pass over it, and a new token writes one column and one row in place.
#pragma once

#include "../kernels/decode.h"
#include "cache_formats.h"

namespace heed {
namespace HEED_ISA {

// The caches of all layers, for one row (or source) after another.
struct Caches {
  char* data;
  int64_t key_bytes, bytes;  // of the keys of one cache, and of one cache
  int layers;
  Cache form;

  Caches(const PackedStack& s, int64_t rows, int64_t length, Arena& arena, int layer_count, int format)
      : layers(layer_count), form{} {
    form.format = format, form.kv_heads = s.kv_heads, form.features = int64_t{s.kv_heads} * s.head_dim;
    form.capacity = static_cast<int>(cache_capacity(length)), form.wide = static_cast<int>(row_numbers(s.value_dim));
    with_cache_format(format, [&](auto of) {
      key_bytes = round_up(of.key_bytes(form.features, form.capacity), 64);
      bytes = key_bytes + round_up(of.value_bytes(s.kv_heads, form.capacity, form.wide), 64);
    });
    data = arena.take<char>(rows * layers * bytes);
  }
  Cache at(int64_t row, int layer) const {
    Cache cache = form;
    cache.keys = data + (row * layers + layer) * bytes, cache.values = cache.keys + key_bytes;
    return cache;
  }
};

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

// Scratch for the attention of `rows` rows to `keys` keys, summed over all caches: for each thread of a team, but for
// `ranges`.
struct AttentionScratch {
  float *query, *scores, *weights, *output;
  float* copy;       // a block of keys or values in float32
  KeyRange* ranges;  // the part of each cache that some row reads
  int64_t numbers;   // from the scratch of one thread to that of the next one

  AttentionScratch(const PackedStack& s, int64_t rows, int64_t keys, Arena& arena) {
    const int64_t queries = rows * (s.heads / s.kv_heads), lines = 64 / sizeof(float);
    const int64_t query_numbers = round_up(queries * s.head_dim, lines),
                  score_numbers = round_up(queries * keys, lines), weight_numbers = round_up(keys, lines),
                  output_numbers = round_up(queries * row_numbers(s.value_dim), lines);
    numbers = query_numbers + score_numbers + weight_numbers + output_numbers +
              round_up(kCacheBlock * max(s.head_dim, row_numbers(s.value_dim)), lines);
    query = arena.take<float>(numbers * (s.team ? threads_of(*s.team) : 1));
    scores = query + query_numbers, weights = scores + score_numbers, output = weights + weight_numbers;
    copy = output + output_numbers;
    ranges = arena.take<KeyRange>(max(rows, 1));
  }

  AttentionScratch of_worker(int worker) const {
    AttentionScratch own = *this;
    own.query += worker * numbers, own.scores += worker * numbers;
    own.weights += worker * numbers, own.output += worker * numbers, own.copy += worker * numbers;
    return own;
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

// Rows that attend to the cache that they share: rows [first, first + rows) of the queries.
struct SharedCache {
  int first, rows;
  Cache cache;
  VisibleKeys visible;
};

// Attention of some rows to the caches of one layer: one cache for all rows, or one for each beam. A team shares the
// heads.
class CachedAttention {
 public:
  CachedAttention(const PackedStack& stack, int64_t rows, int64_t keys, Arena& arena)
      : stack_(stack), scratch_(stack, rows, keys, arena) {}

  // attended (rows, N V) = attention of the queries (rows, N H); 0 where they see no key. For each i < count,
  // part(i), a SharedCache, describes some of the rows.
  template <class Part>
  void attend_shared(const PackedAttention& how, Matrix queries, int count, const Part& part, Matrix attended) const {
    if (count == 0) return;
    const SharedCache last = part(count - 1);
    share_heads(count, last.rows, last.visible.keys, [&](int i, int64_t kv_head, const AttentionScratch& s) {
      const SharedCache p = part(i);
      const Matrix to = attended.from(p.first);
      if (p.visible.keys == 0) return clear(kv_head, p.rows, to);
      // The window moves on from row to row.
      const KeyRange range{p.visible.range_of(0, how.options.sliding_window).begin,
                           p.visible.range_of(p.rows - 1, how.options.sliding_window).end};
      attend({how, queries.from(p.first), p.rows, &p.cache, &range, 1, p.visible, nullptr, to}, kv_head, s);
    });
  }

  // The same for beams, which share one position. Each has a cache, and its keys may lie in any of them.
  void attend_beams(const PackedAttention& how, Matrix queries, int beams, const Cache* caches,
                    const VisibleKeys& visible, const Ancestors& ancestors, Matrix attended) const {
    KeyRange* ranges = scratch_.ranges;
    for (int i = 0; i < beams; ++i) ranges[i] = {visible.keys, 0};
    for (int k = 0; k < beams; ++k)
      for (int j = visible.range_of(0, how.options.sliding_window).begin; j < visible.keys; ++j) {
        KeyRange& range = ranges[ancestors.slot[k * ancestors.stride + j]];
        if (j < range.begin) range.begin = j;
        if (j >= range.end) range.end = j + 1;
      }
    share_heads(1, beams, visible.keys, [&](int, int64_t kv_head, const AttentionScratch& s) {
      attend({how, queries, beams, caches, ranges, beams, visible, &ancestors, attended}, kv_head, s);
    });
  }

 private:
  // Queries (rows, N H) and the caches that they attend to, in each a range of keys.
  struct Queries {
    const PackedAttention& how;
    Matrix rows;
    int count;
    const Cache* caches;
    const KeyRange* ranges;
    int cache_count;
    const VisibleKeys& visible;
    const Ancestors* ancestors;  // null: one cache
    Matrix attended;
  };

  // Calls function(i, key head, scratch) for each i < count and each key head; `rows` attend to `keys` each time.
  template <class Function>
  void share_heads(int count, int rows, int keys, const Function& function) const {
    const int64_t work = int64_t{rows} * keys * (stack_.heads / stack_.kv_heads) * (stack_.head_dim + stack_.value_dim);
    share_ranges(stack_.team, count * stack_.kv_heads, work, [&](int begin, int end, int worker) {
      const AttentionScratch s = scratch_.of_worker(worker);
      for (int i = begin; i < end; ++i) function(i / stack_.kv_heads, i % stack_.kv_heads, s);
    });
  }

  void clear(int64_t kv_head, int rows, Matrix attended) const {
    const int64_t numbers = int64_t{stack_.heads} / stack_.kv_heads * stack_.value_dim;
    for (int r = 0; r < rows; ++r)
      for (int64_t i = kv_head * numbers; i < (kv_head + 1) * numbers; ++i) attended[r][i] = 0;
  }

  // The query heads of one key head.
  void attend(const Queries& q, int64_t k, const AttentionScratch& s) const {
    const int queries_per_kv = stack_.heads / stack_.kv_heads, count = q.count * queries_per_kv;
    const int head_dim = stack_.head_dim, value_dim = stack_.value_dim, wide = round_up(value_dim, kLanes<float>);
    const int capacity = q.caches[0].capacity;
    const int64_t scores_row = static_cast<int64_t>(q.cache_count) * capacity;
    const int64_t first_head = k * queries_per_kv;
    for (int r = 0; r < q.count; ++r)
      for (int c = 0; c < queries_per_kv * head_dim; ++c)
        s.query[r * queries_per_kv * head_dim + c] = q.rows[r][first_head * head_dim + c] * q.how.scale;
    for (int i = 0; i < q.cache_count; ++i)
      if (q.ranges[i].begin < q.ranges[i].end)
        score_keys(q.caches[i], k, q.ranges[i], q.visible.keys, {s.query, head_dim, 1}, count, s.scores + i * capacity,
                   scores_row, s.copy);
    for (int r = 0; r < count; ++r) {
      const int row = r / queries_per_kv;
      const int64_t head = first_head + r % queries_per_kv;
      const KeyRange own = q.visible.range_of(row, q.how.options.sliding_window);
      float* scores = s.scores + r * scores_row;
      if (!q.ancestors) {
        softmax(s, q.how, head, row, q.visible, q.ranges[0], own, scores);
        continue;
      }
      const uint8_t* slot = q.ancestors->slot + row * q.ancestors->stride;
      for (int j = own.begin; j < own.end; ++j) s.weights[j] = scores[slot[j] * capacity + j];
      softmax(s, q.how, head, row, q.visible, own, own, s.weights);
      for (int i = 0; i < q.cache_count; ++i)
        for (int j = q.ranges[i].begin; j < q.ranges[i].end; ++j)
          scores[i * capacity + j] = slot[j] == i ? s.weights[j] : 0;
    }
    bool accumulate = false;
    for (int i = 0; i < q.cache_count; ++i) {
      const KeyRange range = q.ranges[i];
      if (range.begin >= range.end) continue;
      add_values(q.caches[i], k, range, s.scores + i * capacity, scores_row, count, s.output, accumulate, s.copy);
      accumulate = true;
    }
    for (int r = 0; r < count; ++r) {
      float* to = q.attended[r / queries_per_kv] + (first_head + r % queries_per_kv) * value_dim;
      for (int c = 0; c < value_dim; c += kLanes<float>)
        store_some(to + c, value_dim - c, load(s.output + r * wide + c));
    }
  }

  // scores[r][j] = query[r] . key[j] for the keys of a range, and for some before and after it.
  void score_keys(const Cache& cache, int64_t k, KeyRange range, int keys, Strided<float> query, int count,
                  float* scores, int64_t scores_row, float* copy) const {
    const int head_dim = stack_.head_dim;
    with_cache_format(cache.format, [&](auto format) {
      if constexpr (decltype(format)::kInPlace) {
        const int begin = range.begin / kLanes<float> * kLanes<float>;
        product<float>(query, count, format.keys(cache, k * head_dim, begin), cache.capacity, scores + begin,
                       scores_row, round_up(range.end - begin, kLanes<float>), head_dim, false);
      } else {
        for (int j = range.begin / kCacheBlock * kCacheBlock; j < range.end; j += kCacheBlock) {
          format.read_keys(cache, k * head_dim, head_dim, j, keys, copy);
          product<float>(query, count, copy, kCacheBlock, scores + j, scores_row, kCacheBlock, head_dim, false);
        }
      }
    });
  }

  // to[r] (wide) = sum of weights[r][j] value[j] over a range, plus `to` if it accumulates.
  void add_values(const Cache& cache, int64_t k, KeyRange range, const float* weights, int64_t weights_row, int count,
                  float* to, bool accumulate, float* copy) const {
    const int wide = cache.wide;
    with_cache_format(cache.format, [&](auto format) {
      if constexpr (decltype(format)::kInPlace) {
        product<float>({weights + range.begin, weights_row, 1}, count, format.values(cache, k, range.begin), wide, to,
                       wide, wide, range.end - range.begin, accumulate);
      } else {
        for (int j = range.begin; j < range.end; j += kCacheBlock, accumulate = true) {
          const int some = static_cast<int>(min(kCacheBlock, range.end - j));
          format.read_values(cache, k, j, some, copy);
          product<float>({weights + j, weights_row, 1}, count, copy, wide, to, wide, wide, some, accumulate);
        }
      }
    });
  }

  // Turns the scores of a range of keys into weights, 0 outside of the row's own range.
  void softmax(const AttentionScratch& s, const PackedAttention& how, int64_t head, int row, const VisibleKeys& visible,
               KeyRange keys, KeyRange own, float* scores) const {
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
    online_softmax_row(scores + begin, keys.end - begin, &row_max, &row_sum, s.output, 0);
    const float factor = row_sum == 0 ? 0 : 1 / row_sum;
    for (int j = begin; j < keys.end; j += kLanes<float>) store(scores + j, load(scores + j) * factor);
  }

  const PackedStack& stack_;
  const AttentionScratch scratch_;
};

}  // namespace HEED_ISA
}  // namespace heed
