// The rules of a mask. What a rule means stands in heed.h; all else that is known of it is one struct here:
//   kNeeds     what it must be given
//   key_range  narrows [lo, hi), outside of which no query of a span sees a key
//   classify   whether it allows no pair of a block, all of them, or must be asked for each
//   hide       where it must be asked: sets hidden[y][x] to -1 where it hides key y from query x
// A rule that lets consecutive queries see a key has `seen_by` in place of the last two: see `Interval`.
// A new rule is one more struct, one more name in `MaskRules` below, and its kind in heed.h.
#pragma once

#include "block.h"

namespace heed {
namespace HEED_ISA {

enum class BlockMask { kEmpty, kFull, kPartial };

// Some queries against some keys: scores of one head.
struct Block {
  int64_t b, n;
  Span queries, keys;

  int64_t last_query() const { return queries.begin + queries.length - 1; }
  int64_t last_key() const { return keys.begin + keys.length - 1; }
};

HEED_INLINE const int32_t* row_of(const HeedIntegers& x, int64_t b) {
  return x.data + (x.rows == 1 ? 0 : b * x.length);
}
HEED_INLINE int64_t align_of(const HeedIntegers& align, int64_t b) { return align.data ? *row_of(align, b) : 0; }

HEED_INLINE BlockMask full_if(bool all) { return all ? BlockMask::kFull : BlockMask::kPartial; }

constexpr int64_t kNoEnd = INT64_MAX;

// What the rules share whose `seen_by` says which queries see key j: those in [first, end). Both bounds go one way only
// as j grows, so a block is full if all of its queries see its first key and its last.
template <class Rule>
struct Interval {
  struct Queries {
    int64_t first, end;
  };

  static BlockMask classify(const HeedMaskRule& rule, const Block& block) {
    const Queries first = Rule::seen_by(rule, block.b, block.keys.begin);
    const Queries last = Rule::seen_by(rule, block.b, block.last_key());
    return full_if(most(first.first, last.first) <= block.queries.begin &&
                   block.last_query() < least(first.end, last.end));
  }
  template <class Integer>
  static void hide(const HeedMaskRule& rule, const Block& block, int columns, Integer* hidden) {
    for (int y = 0; y < block.keys.length; ++y, hidden += kQueryTile) {
      const Queries seen = Rule::seen_by(rule, block.b, block.keys.begin + y);
      const int begin = static_cast<int>(least(most(seen.first - block.queries.begin, 0), columns));
      const int end = static_cast<int>(least(most(seen.end - block.queries.begin, 0), columns));
      for (int x = 0; x < begin; ++x) hidden[x] = -1;
      for (int x = end; x < columns; ++x) hidden[x] = -1;
    }
  }
};

struct Window : Interval<Window> {
  static constexpr int32_t kKind = HEED_WINDOW;
  static constexpr RuleNeeds kNeeds = {{}, {}, false, "a window must reach 0 or more", 0, 0};

  static void key_range(const HeedMaskRule& rule, int64_t b, Span queries, int64_t* lo, int64_t* hi) {
    const int64_t align = align_of(rule.align, b);
    if (rule.left < HEED_NO_LIMIT) *lo = most(*lo, queries.begin + align - rule.left);
    if (rule.right < HEED_NO_LIMIT) *hi = least(*hi, queries.begin + queries.length + align + rule.right);
  }
  static Queries seen_by(const HeedMaskRule& rule, int64_t b, int64_t j) {
    const int64_t at = j - align_of(rule.align, b);
    return {rule.right < HEED_NO_LIMIT ? at - rule.right : 0, rule.left < HEED_NO_LIMIT ? at + rule.left + 1 : kNoEnd};
  }
};

struct Prefix : Interval<Prefix> {
  static constexpr int32_t kKind = HEED_PREFIX;
  static constexpr RuleNeeds kNeeds = {{"n", Per::kBatch, true}};

  static void key_range(const HeedMaskRule& rule, int64_t b, Span queries, int64_t*, int64_t* hi) {
    const int64_t causal_end = queries.begin + queries.length + align_of(rule.align, b);
    *hi = least(*hi, most(*row_of(rule.first, b), causal_end));
  }
  static Queries seen_by(const HeedMaskRule& rule, int64_t b, int64_t j) {
    return {j < *row_of(rule.first, b) ? 0 : j - align_of(rule.align, b), kNoEnd};
  }
};

struct Lengths : Interval<Lengths> {
  static constexpr int32_t kKind = HEED_LENGTHS;
  static constexpr RuleNeeds kNeeds = {{"key_lengths", Per::kBatch, true}, {"query_lengths", Per::kBatch, false}};

  static void key_range(const HeedMaskRule& rule, int64_t b, Span queries, int64_t*, int64_t* hi) {
    *hi = least(*hi, *row_of(rule.first, b));
    if (rule.second.data && queries.begin >= *row_of(rule.second, b)) *hi = 0;
  }
  static Queries seen_by(const HeedMaskRule& rule, int64_t b, int64_t j) {
    const int64_t query_end = rule.second.data ? *row_of(rule.second, b) : kNoEnd;
    return {0, j < *row_of(rule.first, b) ? query_end : 0};
  }
};

struct Segments {
  static constexpr int32_t kKind = HEED_SEGMENTS;
  static constexpr RuleNeeds kNeeds = {{"query_ids", Per::kQuery, true}, {"key_ids", Per::kKey, true}};

  static void key_range(const HeedMaskRule&, int64_t, Span, int64_t*, int64_t*) {}
  static BlockMask classify(const HeedMaskRule& rule, const Block& block) {
    const int32_t* query = row_of(rule.first, block.b) + block.queries.begin;
    const int32_t* key = row_of(rule.second, block.b) + block.keys.begin;
    int32_t query_least = query[0], query_most = query[0], key_least = key[0], key_most = key[0];
    for (int x = 1; x < block.queries.length; ++x) {
      query_least = query[x] < query_least ? query[x] : query_least;
      query_most = query[x] > query_most ? query[x] : query_most;
    }
    for (int y = 1; y < block.keys.length; ++y) {
      key_least = key[y] < key_least ? key[y] : key_least;
      key_most = key[y] > key_most ? key[y] : key_most;
    }
    if (query_most < key_least || key_most < query_least) return BlockMask::kEmpty;
    return full_if(query_least == query_most && key_least == key_most);  // so they are the same number
  }
  template <class Integer>
  static void hide(const HeedMaskRule& rule, const Block& block, int, Integer* hidden) {
    const int32_t* query = row_of(rule.first, block.b) + block.queries.begin;
    const int32_t* key = row_of(rule.second, block.b) + block.keys.begin;
    for (int y = 0; y < block.keys.length; ++y)
      for (int x = 0; x < block.queries.length; ++x) hidden[y * kQueryTile + x] |= -Integer(query[x] != key[y]);
  }
};

struct Dense {
  static constexpr int32_t kKind = HEED_DENSE;
  static constexpr RuleNeeds kNeeds = {{}, {}, true};

  static void key_range(const HeedMaskRule&, int64_t, Span, int64_t*, int64_t*) {}
  static BlockMask classify(const HeedMaskRule&, const Block&) { return BlockMask::kPartial; }
  template <class Integer>
  static void hide(const HeedMaskRule& rule, const Block& block, int, Integer* hidden) {
    const int64_t* s = rule.dense.stride;
    const uint8_t* from = static_cast<const uint8_t*>(rule.dense.data) + block.b * s[0] + block.n * s[1];
    for (int x = 0; x < block.queries.length; ++x)
      for (int y = 0; y < block.keys.length; ++y)
        hidden[y * kQueryTile + x] |= -Integer(!from[(block.queries.begin + x) * s[2] + (block.keys.begin + y) * s[3]]);
  }
};

struct Dilated {
  static constexpr int32_t kKind = HEED_DILATED;
  static constexpr RuleNeeds kNeeds = {{}, {}, false, "a dilation must be 1 or more", 1};

  // No difference of positions is as large as the most that it can be here, and nothing overflows.
  static int64_t dilation(const HeedMaskRule& rule) { return least(rule.left, int64_t{1} << 40); }
  static int64_t modulo(int64_t x, int64_t d) { return x % d < 0 ? x % d + d : x % d; }
  // The least x mod d of consecutive numbers.
  static int64_t least_modulo(int64_t first, int64_t count, int64_t d) {
    const int64_t rest = modulo(first, d);
    return rest + count > d ? 0 : rest;
  }

  static void key_range(const HeedMaskRule& rule, int64_t b, Span queries, int64_t* lo, int64_t* hi) {
    const int64_t first = queries.begin + align_of(rule.align, b), d = dilation(rule);
    *lo += least_modulo(first - *lo, queries.length, d);
    *hi -= least_modulo(*hi - first - queries.length, queries.length, d);
  }
  static BlockMask classify(const HeedMaskRule& rule, const Block& block) {
    const int64_t least_difference = block.queries.begin + align_of(rule.align, block.b) - block.last_key();
    const int64_t differences = block.queries.length + block.keys.length - 1, d = dilation(rule);
    return least_modulo(least_difference, differences, d) != 0 ? BlockMask::kEmpty : full_if(d == 1);
  }
  template <class Integer>
  static void hide(const HeedMaskRule& rule, const Block& block, int columns, Integer* hidden) {
    // Key y is seen by queries x = first, first + d, ...: those whose rest is that of `first`, if that is in the block.
    const int64_t d = dilation(rule);
    Integer rest[kQueryTile];
    for (int x = 0; x < columns; ++x) rest[x] = static_cast<Integer>(x % least(d, kQueryTile));
    int64_t first = modulo(block.keys.begin - align_of(rule.align, block.b) - block.queries.begin, d);
    for (int y = 0; y < block.keys.length; ++y, first = first + 1 < d ? first + 1 : 0) {
      const Integer seen = static_cast<Integer>(least(first, kQueryTile));
      for (int x = 0; x < columns; ++x) hidden[y * kQueryTile + x] |= -Integer(rest[x] != seen);
    }
  }
};

// All rules, and a way from the kind of one to its struct.
template <class... Rules>
struct RuleList {
  // function(Rule{}); without effect for a kind that there is not.
  template <class Function>
  static HEED_INLINE void with(int32_t kind, const Function& function) {
    (void)((kind == Rules::kKind && (function(Rules{}), true)) || ...);
  }
};
using MaskRules = RuleList<Window, Prefix, Lengths, Segments, Dense, Dilated>;

inline const RuleNeeds* rule_needs(int32_t kind) {
  const RuleNeeds* needs = nullptr;
  MaskRules::with(kind, [&](auto rule) { needs = &decltype(rule)::kNeeds; });
  return needs;
}

// Bounds [lo, hi) outside which no query of the span sees a key.
inline void key_range(const HeedAttention& a, int64_t b, Span queries, int64_t* lo, int64_t* hi) {
  *lo = 0;
  *hi = a.key_length;
  // hi <= S always holds; lo may lie beyond it.
  for (int r = 0; r < a.rule_count; ++r)
    MaskRules::with(a.rules[r].kind, [&](auto rule) { rule.key_range(a.rules[r], b, queries, lo, hi); });
  if (*lo >= *hi) *lo = *hi = 0;  // no block at all, not one of a negative length
}

inline BlockMask classify(const HeedMaskRule& rule, const Block& block) {
  BlockMask mask = BlockMask::kPartial;
  MaskRules::with(rule.kind, [&](auto kind) { mask = kind.classify(rule, block); });
  return mask;
}

// Whether some rule allows no pair of a block, whatever the head.
inline bool ruled_out(const HeedAttention& a, const Block& block) {
  for (int r = 0; r < a.rule_count; ++r)
    if (classify(a.rules[r], block) == BlockMask::kEmpty) return true;
  return false;
}

// What the mask says of one block: nothing to see, all to see, or `hidden` holds -1 where a pair does not count.
template <class Integer>
inline BlockMask classify_block(const HeedAttention& a, const Block& block, int columns, Integer* hidden) {
  bool partial[HEED_MAX_RULES], full = true;
  for (int r = 0; r < a.rule_count; ++r) {
    const BlockMask mask = classify(a.rules[r], block);
    if (mask == BlockMask::kEmpty) return mask;
    partial[r] = mask == BlockMask::kPartial;
    full = full && !partial[r];
  }
  if (full) return BlockMask::kFull;
  for (int y = 0; y < block.keys.length; ++y)
    for (int x = 0; x < columns; ++x) hidden[y * kQueryTile + x] = 0;
  for (int r = 0; r < a.rule_count; ++r)
    if (partial[r]) MaskRules::with(a.rules[r].kind, [&](auto rule) { rule.hide(a.rules[r], block, columns, hidden); });
  bool any = false;
  for (int y = 0; y < block.keys.length && !any; ++y)
    for (int x = 0; x < block.queries.length; ++x) any |= !hidden[y * kQueryTile + x];
  return any ? BlockMask::kPartial : BlockMask::kEmpty;
}

// Whether query x sees key y of a block that is not empty.
template <class Integer>
HEED_INLINE bool sees(BlockMask mask, const Integer* hidden, int y, int x) {
  return mask == BlockMask::kFull || !hidden[y * kQueryTile + x];
}

}  // namespace HEED_ISA
}  // namespace heed
