// The formats of cached keys and values, one struct each: its bytes, how a token is stored, how numbers are read.
//
// Keys are stored transposed (features down, positions across), values with positions down.
#pragma once

#include "dense.h"

namespace heed {
namespace HEED_ISA {

// Positions that are read together; capacities are multiples of it, and int8 has a factor for so many keys.
inline constexpr int kCacheBlock = 32;

inline int64_t cache_capacity(int64_t length) { return round_up(length, kCacheBlock); }

// The keys and values of one row (or source) in one layer: keys (K H, capacity) and values (K, capacity, wide), each
// with what its format adds. Positions not yet written may hold anything: they only reach lanes of scores that do not
// count.
struct Cache {
  char *keys, *values;
  int format;  // HeedCacheFormat
  int kv_heads, capacity, wide;
  int64_t features;  // K H
};

// kInPlace: whether products read it as it is.
template <int kFormat>
struct CacheFormat;

// Numbers of one type, without factors.
template <class Real>
struct PlainCache {
  static int64_t key_bytes(int64_t features, int64_t capacity) { return features * capacity * int64_t{sizeof(Real)}; }
  static int64_t value_bytes(int64_t kv_heads, int64_t capacity, int64_t wide) {
    return kv_heads * capacity * wide * int64_t{sizeof(Real)};
  }

  static void store_key(const Cache& at, int position, const float* key) {
    Real* to = reinterpret_cast<Real*>(at.keys) + position;
    for (int64_t i = 0; i < at.features; i += kLanes<float>) {
      const int count = static_cast<int>(min(kLanes<float>, at.features - i));
      Real narrow[kLanes<float>];
      store_narrow(narrow, load_some(key + i, count));
      for (int lane = 0; lane < count; ++lane) to[(i + lane) * at.capacity] = narrow[lane];
    }
  }
  static void store_value(const Cache& at, int64_t kv_head, int position, const float* value, int count) {
    Real* to = reinterpret_cast<Real*>(at.values) + (kv_head * at.capacity + position) * at.wide;
    for (int c = 0; c < count; c += kLanes<float>) store_narrow(to + c, load_some(value + c, count - c));
  }

  static const Real* keys(const Cache& at, int64_t feature, int position) {
    return reinterpret_cast<const Real*>(at.keys) + feature * at.capacity + position;
  }
  static const Real* values(const Cache& at, int64_t kv_head, int position) {
    return reinterpret_cast<const Real*>(at.values) + (kv_head * at.capacity + position) * at.wide;
  }
};

template <>
struct CacheFormat<HEED_CACHE_FLOAT32> : PlainCache<float> {
  static constexpr bool kInPlace = true;
};

template <>
struct CacheFormat<HEED_CACHE_BFLOAT16> : PlainCache<Bfloat16> {
  static constexpr bool kInPlace = false;

  // to (features, kCacheBlock): the keys of a block; to (count, wide): values from a position on.
  static void read_keys(const Cache& at, int64_t feature, int features, int first, int, float* to) {
    for (int i = 0; i < features; ++i, to += kCacheBlock)
      for (int j = 0; j < kCacheBlock; j += kLanes<float>) store(to + j, load_wide(keys(at, feature + i, first) + j));
  }
  static void read_values(const Cache& at, int64_t kv_head, int first, int count, float* to) {
    const Bfloat16* from = values(at, kv_head, first);
    for (int64_t i = 0; i < count * at.wide; i += kLanes<float>) store(to + i, load_wide(from + i));
  }
};

// to = from / factor, rounded to [-127, 127]. Returns the factor, the largest magnitude / 127; NaN for numbers that are
// not finite.
inline float round_to_bytes(const float* from, int count, int8_t* to) {
  float largest = 0, nonfinite = 0;
  for (int i = 0; i < count; ++i) {
    const float magnitude = __builtin_fabsf(from[i]);
    largest = magnitude > largest ? magnitude : largest;
    nonfinite += magnitude - magnitude;
  }
  const float factor = nonfinite != 0 ? nonfinite : largest / 127;
  for (int i = 0; i < count; ++i) {
    const float x = factor > 0 ? __builtin_rintf(from[i] / factor) : 0;
    to[i] = static_cast<int8_t>(x > 127 ? 127 : x < -127 ? -127 : x);
  }
  return factor;
}

// Bytes times a factor: for each feature of a block of keys, and for each value. The keys of the last block, until it
// is full, are also there in float32: a factor must know all that it is for.
//
// After the bytes of the keys lie their factors (K H, capacity / kCacheBlock) and the last block (K H, kCacheBlock);
// after those of the values their factors (K, capacity).
template <>
struct CacheFormat<HEED_CACHE_INT8> {
  static constexpr bool kInPlace = false;

  static int64_t key_bytes(int64_t features, int64_t capacity) {
    return features * (capacity + (capacity / kCacheBlock + kCacheBlock) * int64_t{sizeof(float)});
  }
  static int64_t value_bytes(int64_t kv_heads, int64_t capacity, int64_t wide) {
    return kv_heads * capacity * (wide + int64_t{sizeof(float)});
  }

  static void store_key(const Cache& at, int position, const float* key) {
    const int place = position % kCacheBlock;
    float* last = last_block(at);
    for (int64_t i = 0; i < at.features; ++i) last[i * kCacheBlock + place] = key[i];
    if (place + 1 < kCacheBlock) return;
    const int64_t block = position / kCacheBlock;
    for (int64_t i = 0; i < at.features; ++i)
      key_factors(at)[i * (at.capacity / kCacheBlock) + block] =
          round_to_bytes(last + i * kCacheBlock, kCacheBlock, key_bytes_of(at, i) + block * kCacheBlock);
  }
  static void store_value(const Cache& at, int64_t kv_head, int position, const float* value, int count) {
    const int64_t row = kv_head * at.capacity + position;
    value_factors(at)[row] = round_to_bytes(value, count, reinterpret_cast<int8_t*>(at.values) + row * at.wide);
  }

  // `keys`: how many there are; a block that they fill is one of bytes.
  static void read_keys(const Cache& at, int64_t feature, int features, int first, int keys, float* to) {
    const bool full = first + kCacheBlock <= keys;
    for (int64_t i = feature; i < feature + features; ++i, to += kCacheBlock) {
      const float factor = key_factors(at)[i * (at.capacity / kCacheBlock) + first / kCacheBlock];
      const int8_t* bytes = key_bytes_of(at, i) + first;
      const float* last = last_block(at) + i * kCacheBlock;
      for (int j = 0; j < kCacheBlock; ++j) to[j] = full ? factor * static_cast<float>(bytes[j]) : last[j];
    }
  }
  static void read_values(const Cache& at, int64_t kv_head, int first, int count, float* to) {
    const int64_t row = kv_head * at.capacity + first;
    const int8_t* bytes = reinterpret_cast<const int8_t*>(at.values) + row * at.wide;
    for (int64_t i = 0; i < count; ++i, bytes += at.wide, to += at.wide) {
      const float factor = value_factors(at)[row + i];
      for (int64_t c = 0; c < at.wide; ++c) to[c] = factor * static_cast<float>(bytes[c]);
    }
  }

 private:
  static int8_t* key_bytes_of(const Cache& at, int64_t feature) {
    return reinterpret_cast<int8_t*>(at.keys) + feature * at.capacity;
  }
  static float* key_factors(const Cache& at) { return reinterpret_cast<float*>(at.keys + at.features * at.capacity); }
  static float* last_block(const Cache& at) { return key_factors(at) + at.features * (at.capacity / kCacheBlock); }
  static float* value_factors(const Cache& at) {
    return reinterpret_cast<float*>(at.values + int64_t{at.kv_heads} * at.capacity * at.wide);
  }
};

// use(a CacheFormat) of this number.
template <class Use>
inline auto with_cache_format(int format, const Use& use) {
  switch (format) {
#define HEED_USE_CACHE(name, text) \
  case HEED_CACHE_##name: return use(CacheFormat<HEED_CACHE_##name>{});
    HEED_EACH_CACHE(HEED_USE_CACHE)
#undef HEED_USE_CACHE
  }
  __builtin_unreachable();
}

// Stores a key (K H) and a value (K V) at a position; int8 takes positions in order.
inline void write_cache(const PackedStack& s, const Cache& cache, int position, const float* key, const float* value) {
  with_cache_format(cache.format, [&](auto format) {
    format.store_key(cache, position, key);
    for (int k = 0; k < s.kv_heads; ++k) format.store_value(cache, k, position, value + k * s.value_dim, s.value_dim);
  });
}

}  // namespace HEED_ISA
}  // namespace heed
