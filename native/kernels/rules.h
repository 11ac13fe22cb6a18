// The mask rules. heed.h defines their meaning; a struct here holds the rest of each:
//   kNeeds     the arrays and bounds that it requires
//   key_range  narrows [lo, hi), outside of which no query of a span sees a key
//   classify   whether a block is empty, full or partial
//   hide       for a partial block: sets bit x of hidden[y] if query x does not see key y
// A rule that shows each key to consecutive queries has `seen_by` instead of the last two: see `Interval`.
// A new rule is a struct here, its name in `MaskRules` below, and its kind in heed.h.
#pragma once

#include "program.h"

namespace heed {
namespace HEED_ISA {

enum class BlockMask { kEmpty, kFull, kPartial };

HEED_INLINE const int32_t* row_of(const HeedIntegers& x, int64_t b) {
  return x.data + (x.rows == 1 ? 0 : b * x.length);
}
HEED_INLINE int64_t align_of(const HeedIntegers& align, int64_t b) { return align.data ? *row_of(align, b) : 0; }

HEED_INLINE BlockMask full_if(bool all) { return all ? BlockMask::kFull : BlockMask::kPartial; }

constexpr int64_t kNoEnd = INT64_MAX;

// The hidden pairs of a block are a word for each key, a bit for each query.
static_assert(kQueryTile == 64, "a query tile must have a bit for each query in a word");

// Transposes a matrix of bits, a word for each row: exchanges halves, then quarters, ...
inline void transpose_bits(uint64_t* words) {
  uint64_t low = 0xffffffffu;  // the low half of each 2 * half bits
  for (int half = 32; half > 0; half /= 2, low ^= low << half)
    for (int begin = 0; begin < 64; begin += 2 * half)
      for (int r = begin; r < begin + half; ++r) {
        const uint64_t exchanged = (words[r] >> half ^ words[r + half]) & low;
        words[r + half] ^= exchanged;
        words[r] ^= exchanged << half;
      }
}

// Rules whose `seen_by` gives the queries [first, end) that see key j. Both bounds are monotonic in j, so a block is
// full if all of its queries see its first and its last key.
template <class Rule>
struct Interval {
  struct Queries {
    int64_t first, end;
  };

  static BlockMask classify(const HeedMaskRule& rule, const Block& block) {
    const Queries first = Rule::seen_by(rule, block.b, block.keys.begin);
    const Queries last = Rule::seen_by(rule, block.b, block.last_key());
    return full_if(max(first.first, last.first) <= block.queries.begin &&
                   block.last_query() < min(first.end, last.end));
  }
  static void hide(const HeedMaskRule& rule, const Block& block, uint64_t* hidden) {
    for (int y = 0; y < block.keys.length; ++y) {
      const Queries seen = Rule::seen_by(rule, block.b, block.keys.begin + y);
      hidden[y] |= bits_below(seen.first - block.queries.begin) | ~bits_below(seen.end - block.queries.begin);
    }
  }
};

struct Window : Interval<Window> {
  static constexpr int32_t kKind = HEED_WINDOW;
  static constexpr RuleNeeds kNeeds = {{}, {}, false, "a window must reach 0 or more", 0, 0};

  static void key_range(const HeedMaskRule& rule, int64_t b, Span queries, int64_t* lo, int64_t* hi) {
    const int64_t align = align_of(rule.align, b);
    if (rule.left < HEED_NO_LIMIT) *lo = max(*lo, queries.begin + align - rule.left);
    if (rule.right < HEED_NO_LIMIT) *hi = min(*hi, queries.begin + queries.length + align + rule.right);
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
    *hi = min(*hi, max(*row_of(rule.first, b), causal_end));
  }
  static Queries seen_by(const HeedMaskRule& rule, int64_t b, int64_t j) {
    return {j < *row_of(rule.first, b) ? 0 : j - align_of(rule.align, b), kNoEnd};
  }
};

struct Lengths : Interval<Lengths> {
  static constexpr int32_t kKind = HEED_LENGTHS;
  static constexpr RuleNeeds kNeeds = {{"key_lengths", Per::kBatch, true}, {"query_lengths", Per::kBatch, false}};

  static void key_range(const HeedMaskRule& rule, int64_t b, Span queries, int64_t*, int64_t* hi) {
    *hi = min(*hi, *row_of(rule.first, b));
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
  static void hide(const HeedMaskRule& rule, const Block& block, uint64_t* hidden) {
    const int32_t* query = row_of(rule.first, block.b) + block.queries.begin;
    const int32_t* key = row_of(rule.second, block.b) + block.keys.begin;
    int32_t ids[kQueryTile] = {};
    for (int x = 0; x < block.queries.length; ++x) ids[x] = query[x];
    for (int y = 0; y < block.keys.length; ++y)
      for (int x = 0; x < block.queries.length; x += kLanes<float>)
        hidden[y] |= Simd::bits_of(load_as<Integers<float>>(ids + x) != key[y]) << x;
  }
};

struct Dense {
  static constexpr int32_t kKind = HEED_DENSE;
  static constexpr RuleNeeds kNeeds = {{}, {}, true};

  static void key_range(const HeedMaskRule&, int64_t, Span, int64_t*, int64_t*) {}
  static BlockMask classify(const HeedMaskRule&, const Block&) { return BlockMask::kPartial; }
  static void hide(const HeedMaskRule& rule, const Block& block, uint64_t* hidden) {
    const int64_t* s = rule.dense.stride;
    const uint8_t* from = static_cast<const uint8_t*>(rule.dense.data) + block.b * s[0] + block.n * s[1] +
                          block.queries.begin * s[2] + block.keys.begin * s[3];
    const int queries = block.queries.length, keys = block.keys.length;
    constexpr int kFew = 8;  // transposing fewer queries does not pay
    if (s[2] == 0) {         // the same for all of them
      for (int y = 0; y < keys; ++y)
        if (!from[y * s[3]]) hidden[y] = ~uint64_t{0};
    } else if (s[3] == 1 && queries >= kFew) {
      for (int y = 0; y < keys; y += 64) {
        const int count = static_cast<int>(min(64, keys - y));
        uint64_t words[kQueryTile] = {};
        for (int x = 0; x < queries; ++x) words[x] = Simd::zero_bytes(from + x * s[2] + y, count);
        transpose_bits(words);
        for (int i = 0; i < count; ++i) hidden[y + i] |= words[i];
      }
    } else if (s[3] == 1) {
      for (int x = 0; x < queries; ++x)
        for (int y = 0; y < keys; y += 64) {
          const int count = static_cast<int>(min(64, keys - y));
          const uint64_t zero = Simd::zero_bytes(from + x * s[2] + y, count);
          for (int i = 0; i < count; ++i) hidden[y + i] |= (zero >> i & 1) << x;
        }
    } else {
      for (int x = 0; x < queries; ++x)
        for (int y = 0; y < keys; ++y) hidden[y] |= static_cast<uint64_t>(!from[x * s[2] + y * s[3]]) << x;
    }
  }
};

struct Dilated {
  static constexpr int32_t kKind = HEED_DILATED;
  static constexpr RuleNeeds kNeeds = {{}, {}, false, "a dilation must be 1 or more", 1};

  // Larger than any difference of positions, and nothing overflows.
  static int64_t dilation(const HeedMaskRule& rule) { return min(rule.left, int64_t{1} << 40); }
  static int64_t remainder(int64_t x, int64_t d) { return x % d < 0 ? x % d + d : x % d; }
  // The smallest x mod d of consecutive numbers x.
  static int64_t least_remainder(int64_t first, int64_t count, int64_t d) {
    const int64_t rest = remainder(first, d);
    return rest + count > d ? 0 : rest;
  }

  static void key_range(const HeedMaskRule& rule, int64_t b, Span queries, int64_t* lo, int64_t* hi) {
    const int64_t first = queries.begin + align_of(rule.align, b), d = dilation(rule);
    *lo += least_remainder(first - *lo, queries.length, d);
    *hi -= least_remainder(*hi - first - queries.length, queries.length, d);
  }
  static BlockMask classify(const HeedMaskRule& rule, const Block& block) {
    const int64_t least_difference = block.queries.begin + align_of(rule.align, block.b) - block.last_key();
    const int64_t differences = block.queries.length + block.keys.length - 1, d = dilation(rule);
    return least_remainder(least_difference, differences, d) != 0 ? BlockMask::kEmpty : full_if(d == 1);
  }
  static void hide(const HeedMaskRule& rule, const Block& block, uint64_t* hidden) {
    // Key y is seen by queries x = first, first + d, ...
    const int64_t d = dilation(rule);
    uint64_t every_dth = 0;
    for (int64_t x = 0; x < kQueryTile; x += d) every_dth |= uint64_t{1} << x;
    int64_t first = remainder(block.keys.begin - align_of(rule.align, block.b) - block.queries.begin, d);
    for (int y = 0; y < block.keys.length; ++y, first = first + 1 < d ? first + 1 : 0)
      hidden[y] |= first < kQueryTile ? ~(every_dth << first) : ~uint64_t{0};
  }
};

// Rules of programs, whose `code` and `result` give the step that is judged, and whose `hides` says whether its bounds
// hide all pairs.
template <class Rule>
struct Judged {
  static constexpr RuleNeeds kNeeds = {{}};
  static constexpr int kUnit = 8;  // of the keys of a range

  static void key_range(const HeedMaskRule& rule, int64_t b, Span queries, int64_t* lo, int64_t* hi) {
    const Plan& plan = plan_of(rule);
    const int result = Rule::result(plan);
    Bounds known[HEED_MAX_INSTRUCTIONS];
    bool again = false;
    const auto hides = [&](int64_t first, int64_t end) {
      const PairRange range{b, 0, rule.right - 1, queries.begin, queries.begin + queries.length - 1, first, end - 1};
      follow_bounds(plan, Rule::code(plan), result, range, known, again);
      again = true;
      return Rule::hides(known[result]);
    };
    if (*lo >= *hi) return;
    if (hides(*lo, *hi)) {
      *hi = *lo;
      return;
    }
    // Halves what may be seen until its first unit, and then its last one, is found.
    for (int64_t first = *lo, end = *hi; end - first > kUnit;) {
      const int64_t middle = first + (end - first) / 2;
      (hides(first, middle) ? first = *lo = middle : end = middle);
    }
    for (int64_t first = *lo, end = *hi; end - first > kUnit;) {
      const int64_t middle = first + (end - first) / 2;
      (hides(middle, end) ? end = *hi = middle : first = middle);
    }
  }
  // Of the queries and the head of a block, and its keys or others.
  static Bounds judge(const HeedMaskRule& rule, const Block& block) {
    return judge(rule, block, block.keys.begin, block.last_key());
  }
  static Bounds judge(const HeedMaskRule& rule, const Block& block, int64_t first_key, int64_t last_key) {
    const PairRange range{block.b, block.n, block.n, block.queries.begin, block.last_query(), first_key, last_key};
    const Plan& plan = plan_of(rule);
    return bounds_of_step(plan, Rule::code(plan), Rule::result(plan), range);
  }
};

// What a program keeps.
struct Programmed : Judged<Programmed> {
  static constexpr int32_t kKind = kProgramRule;

  static const Code& code(const Plan& plan) { return plan.keep; }
  static int result(const Plan& plan) { return plan.keep_step; }
  static bool hides(Bounds kept) { return kept.is(0); }
  static BlockMask classify(const HeedMaskRule& rule, const Block& block) {
    const Bounds kept = judge(rule, block);
    return hides(kept) ? BlockMask::kEmpty : full_if(kept.is(1));
  }
  static void hide(const HeedMaskRule& rule, const Block& block, uint64_t* hidden) {
    const Plan& plan = plan_of(rule);
    uint64_t kept[kKeyBlock];
    if (BitRun(plan, block).run(plan.keep_step, kept)) {
      for (int y = 0; y < block.keys.length; ++y) hidden[y] |= ~kept[y];
      return;
    }
    (plan.is_double ? hide_by_program<double> : hide_by_program<float>)(plan, block, hidden);
  }
};

// The blocks whose modified scores all hide their keys. Single ones become -inf.
struct Scored : Judged<Scored> {
  static constexpr int32_t kKind = kScoreRule;

  static const Code& code(const Plan& plan) { return plan.score; }
  static int result(const Plan& plan) { return plan.score_step; }
  static bool hides(Bounds score) { return score.most <= HEED_MASK_VALUE && !score.maybe_nan; }
  static BlockMask classify(const HeedMaskRule& rule, const Block& block) {
    return hides(judge(rule, block)) ? BlockMask::kEmpty : BlockMask::kFull;
  }
  static void hide(const HeedMaskRule&, const Block&, uint64_t*) {}
};

// All rules, and the mapping from a kind to its struct.
template <class... Rules>
struct RuleList {
  // Calls function(Rule{}); does nothing for an unknown kind.
  template <class Function>
  static HEED_INLINE void with(int32_t kind, const Function& function) {
    (void)((kind == Rules::kKind && (function(Rules{}), true)) || ...);
  }
};
using MaskRules = RuleList<Window, Prefix, Lengths, Segments, Dense, Dilated, Programmed, Scored>;

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
  if (*lo >= *hi) *lo = *hi = 0;  // no block, rather than one of negative length
}

inline BlockMask classify(const HeedMaskRule& rule, const Block& block) {
  BlockMask mask = BlockMask::kPartial;
  MaskRules::with(rule.kind, [&](auto kind) { mask = kind.classify(rule, block); });
  return mask;
}

// Whether heads may see different keys.
inline bool differs_by_head(const HeedMaskRule& rule) {
  return rule.kind == HEED_DENSE ? rule.dense.stride[1] != 0
                                 : (rule.kind == kProgramRule && plan_of(rule).keep.by_head) ||
                                       (rule.kind == kScoreRule && plan_of(rule).score.by_head);
}
inline bool mask_differs_by_head(const HeedAttention& a) {
  for (int r = 0; r < a.rule_count; ++r)
    if (differs_by_head(a.rules[r])) return true;
  return false;
}

// Whether some rule hides a whole block, for every head.
inline bool rules_out(const HeedAttention& a, const Block& block) {
  for (int r = 0; r < a.rule_count; ++r)
    if (!differs_by_head(a.rules[r]) && classify(a.rules[r], block) == BlockMask::kEmpty) return true;
  return false;
}

// Whether a block is empty, full or partial; for a partial one `hidden` has its hidden pairs.
inline BlockMask classify_block(const HeedAttention& a, const Block& block, uint64_t* hidden) {
  bool partial[kMostRules], full = true;
  for (int r = 0; r < a.rule_count; ++r) {
    const BlockMask mask = classify(a.rules[r], block);
    if (mask == BlockMask::kEmpty) return mask;
    partial[r] = mask == BlockMask::kPartial;
    full = full && !partial[r];
  }
  if (full) return BlockMask::kFull;
  for (int y = 0; y < block.keys.length; ++y) hidden[y] = 0;
  for (int r = 0; r < a.rule_count; ++r)
    if (partial[r]) MaskRules::with(a.rules[r].kind, [&](auto rule) { rule.hide(a.rules[r], block, hidden); });
  uint64_t seen = 0, hides = 0;
  for (int y = 0; y < block.keys.length; ++y) seen |= ~hidden[y], hides |= hidden[y];
  const uint64_t queries = bits_below(block.queries.length);
  if (!(seen & queries)) return BlockMask::kEmpty;
  return hides & queries ? BlockMask::kPartial : BlockMask::kFull;
}

// The last of the blocks of keys after block `at`, which is empty, up to which the verdicts of a program hide all keys
// before `hi`; `at` if there is none. It gallops: a long run of empty blocks costs few verdicts.
inline int64_t last_empty_block(const HeedAttention& a, const Block& block, int64_t at, int64_t hi) {
  const int64_t end = (hi - 1) / kKeyBlock;
  for (int r = 0; r < a.rule_count; ++r)
    MaskRules::with(a.rules[r].kind, [&](auto rule) {
      typedef decltype(rule) Rule;
      if constexpr (__is_base_of(Judged<Rule>, Rule)) {
        bool grows = true;
        for (int64_t step = 1; step > 0 && at < end; step = grows ? 2 * step : step / 2) {
          const int64_t next = min(at + step, end);
          const int64_t last_key = min((next + 1) * kKeyBlock, hi) - 1;
          if (Rule::hides(Rule::judge(a.rules[r], block, (at + 1) * kKeyBlock, last_key)))
            at = next;
          else
            grows = false;
        }
      }
    });
  return at;
}

// Whether query x sees key y of a block that is not empty.
HEED_INLINE bool sees(BlockMask mask, const uint64_t* hidden, int y, int x) {
  return mask == BlockMask::kFull || !(hidden[y] >> x & 1);
}

}  // namespace HEED_ISA
}  // namespace heed
