// The visible part of a block, in two partitions: products skip keys and queries that a mask hides from each other,
// such as those beyond the diagonal of a causal mask or the edges of a window.
#pragma once

#include "rules.h"

namespace heed {
namespace HEED_ISA {

// For each strip of queries the keys, from the first to the last, that any of them sees. Strips with the same keys are
// joined; a strip that sees nothing has one key.
template <class Real>
class Strips {
 public:
  struct Strip {
    int query, columns, key, keys;  // within the block

    int64_t at() const { return static_cast<int64_t>(key) * kQueryTile + query; }  // the first pair, in scores
  };

  static constexpr int kWidth = 2 * kLanes<Real>;  // the narrower of the tiles of `product`

  // `mask` and `hidden`: see `classify_block`. `columns`: the queries, in whole vectors.
  Strips(const Block& block, BlockMask mask, const uint64_t* hidden, int columns) : columns_(columns) {
    const int width = mask == BlockMask::kFull ? columns : kWidth;
    for (int x = 0; x < columns; x += width) {
      Strip strip{x, static_cast<int>(min(width, columns - x)), 0, block.keys.length};
      if (mask == BlockMask::kPartial) narrow(block, hidden, &strip);
      if (count_ > 0 && strips_[count_ - 1].key == strip.key && strips_[count_ - 1].keys == strip.keys)
        strips_[count_ - 1].columns += strip.columns;
      else
        strips_[count_++] = strip;
    }
  }

  const Strip* begin() const { return strips_; }
  const Strip* end() const { return strips_ + count_; }
  int columns() const { return columns_; }

 private:
  static constexpr int kUnit = 8;  // of keys: so that strips of an irregular mask have the same

  static void narrow(const Block& block, const uint64_t* hidden, Strip* strip) {
    const uint64_t queries = bits_below(min(strip->columns, block.queries.length - strip->query)) << strip->query;
    int first = 0, end = block.keys.length;
    while (end > 1 && !(~hidden[end - 1] & queries)) --end;
    while (first < end - 1 && !(~hidden[first] & queries)) ++first;
    strip->key = first / kUnit * kUnit;
    strip->keys = static_cast<int>(min(round_up(end, kUnit), block.keys.length)) - strip->key;
  }

  Strip strips_[kQueryTile / kWidth];
  int count_ = 0, columns_;
};

// C = A . B in each strip of a block, 0 elsewhere: rows of A are keys, columns of B are queries.
template <class Real>
inline void product_in_strips(const Strips<Real>& strips, Strided<Real> a, int keys, const Real* b, Real* c,
                              int depth) {
  for (const auto& strip : strips) {
    const auto clear = [&](int begin, int end) {
      for (int y = begin; y < end; ++y)
        for (int x = 0; x < strip.columns; x += kLanes<Real>)
          store(c + y * kQueryTile + strip.query + x, Vector<Real>{});
    };
    clear(0, strip.key);
    clear(strip.key + strip.keys, keys);
    product(Strided<Real>{a.data + strip.key * a.row, a.row, a.step}, strip.keys, b + strip.query, kQueryTile,
            c + strip.at(), kQueryTile, strip.columns, depth, false);
  }
}

// C += A . B with the pairs of each strip: columns of A are keys, rows of B are weights of the pairs.
template <class Real>
inline void add_product_of_strips(const Strips<Real>& strips, Strided<Real> a, int rows, const Real* b, Real* c) {
  for (const auto& strip : strips)
    product(Strided<Real>{a.data + strip.key * a.step, a.row, a.step}, rows, b + strip.at(), kQueryTile,
            c + strip.query, kQueryTile, strip.columns, strip.keys, true);
}

// For each band of keys the queries, from the first to the last, that see any of them. Bands with the same queries are
// joined.
class Bands {
 public:
  struct Band {
    int key, keys, query, queries;  // within the block

    int64_t at() const { return static_cast<int64_t>(key) * kQueryTile + query; }
  };

  Bands(const Block& block, BlockMask mask, const uint64_t* hidden) {
    const int height = mask == BlockMask::kFull ? block.keys.length : kHeight;
    for (int y = 0; y < block.keys.length; y += height) {
      Band band{y, static_cast<int>(min(height, block.keys.length - y)), 0, block.queries.length};
      if (mask == BlockMask::kPartial && !narrow(hidden, &band)) continue;
      if (count_ > 0 && bands_[count_ - 1].query == band.query && bands_[count_ - 1].queries == band.queries &&
          bands_[count_ - 1].key + bands_[count_ - 1].keys == band.key)
        bands_[count_ - 1].keys += band.keys;
      else
        bands_[count_++] = band;
    }
  }

  const Band* begin() const { return bands_; }
  const Band* end() const { return bands_ + count_; }

 private:
  static constexpr int kHeight = 12;  // two tiles of `product`
  static constexpr int kUnit = 8;     // of queries, as `Strips::kUnit`

  // Returns false if no query sees the band.
  static bool narrow(const uint64_t* hidden, Band* band) {
    uint64_t seen = 0;
    for (int y = band->key; y < band->key + band->keys; ++y) seen |= ~hidden[y];
    seen &= bits_below(band->queries);
    if (!seen) return false;
    band->query = __builtin_ctzll(seen) / kUnit * kUnit;
    band->queries = static_cast<int>(min(round_up(64 - __builtin_clzll(seen), kUnit), band->queries)) - band->query;
    return true;
  }

  Band bands_[(kKeyBlock + kHeight - 1) / kHeight];
  int count_ = 0;
};

// Both partitions, for the backward pass.
template <class Real>
struct VisiblePairs {
  Strips<Real> strips;
  Bands bands;

  VisiblePairs(const Block& block, BlockMask mask, const uint64_t* hidden, int columns)
      : strips(block, mask, hidden, columns), bands(block, mask, hidden) {}
};

// C += A^T . B with the pairs of each band: rows of A are keys, rows of B queries, `width` numbers each.
template <class Real>
inline void add_product_of_bands(const Bands& bands, const Real* a, const Real* b, Real* c, int width) {
  for (const auto& band : bands)
    product(Strided<Real>{a + band.at(), kQueryTile, 1}, band.keys, b + static_cast<int64_t>(band.query) * width, width,
            c + static_cast<int64_t>(band.key) * width, width, width, band.queries, true);
}

}  // namespace HEED_ISA
}  // namespace heed
