// Additive attention, forward: one query tile against the keys that it may see.
//
// As in forward.h, with scores from additive.h instead of a matrix product: keys down and queries across in a block of
// scores. The backward pass gets the scores if they are few, see `keeps_scores`; else only a block of them exists at a
// time. The keys of a tile may be split among tasks; each leaves the state of its softmax, and the states are joined.
#pragma once

#include "additive.h"
#include "forward.h"
#include "registry.h"

namespace heed {
namespace HEED_ISA {

// A query tile, and the scores of one block of keys at a time.
template <class Stored>
struct AdditiveTile {
  typedef typename Compute<Stored>::Type Real;

  const HeedAttention& a;
  const int units, stride;
  Real *vector, *bias;     // padded like a row of units
  Real *query, *prepared;  // the queries, and their form for `prepared_for`
  Real *key, *value_copy, *scores;
  uint64_t* hidden;  // a word for each key
  const uint8_t* finite = nullptr;
  int64_t b = 0, lo = 0, hi = 0;  // the keys that may be seen
  Span queries{};
  int columns = 0;
  Real largest_query = 0;
  bool nonfinite_query[kQueryTile] = {};  // set only with a mask
  // Of the current block of keys.
  Span keys{};
  BlockMask mask = BlockMask::kEmpty;
  bool has_nonfinite = false;
  Range range = Range::kAny, prepared_for = Range::kAny;

  AdditiveTile(const HeedAttention& attention, Arena& arena)
      : a(attention),
        units(static_cast<int>(a.head_dim)),
        stride(units_stride<Real>(units)),
        vector(arena.take<Real>(stride)),
        bias(arena.take<Real>(stride)),
        query(arena.take<Real>(kQueryTile * stride)),
        prepared(arena.take<Real>(kQueryTile * stride)),
        key(arena.take<Real>(kKeyBlock * stride)),
        value_copy(arena.take<Real>(kKeyBlock * round_up(a.value_dim, kLanes<Real>))),
        scores(arena.take<Real>(kKeyBlock * kQueryTile)),
        hidden(arena.take<uint64_t>(kKeyBlock)) {}

  void begin(const uint8_t* finite_blocks, const AdditivePart& part) {
    finite = finite_blocks;
    b = part.b;
    queries = query_tile(a, part.tile);
    columns = round_up(queries.length, kLanes<Real>);
    key_range(a, b, queries, &lo, &hi);
    for (int u = 0; u < stride; ++u) {
      vector[u] = u < units ? static_cast<const Real*>(a.score_vector)[u] : Real(0);
      bias[u] = u < units && a.unit_bias ? static_cast<const Real*>(a.unit_bias)[u] : Real(0);
    }
    largest_query = load_units<Stored>(a.query, b, queries, queries.length, units, bias, query,
                                       a.rule_count > 0 ? nonfinite_query : nullptr);
  }

  const Real* query_rows() const { return range == Range::kAny ? query : prepared; }

  // Calls function(range as a Constant).
  template <class Function>
  HEED_INLINE void with_range(const Function& function) const {
    switch (range) {
      case Range::kSmall: return function(Constant<Range::kSmall>{});
      case Range::kUsual: return function(Constant<Range::kUsual>{});
      case Range::kAny: return function(Constant<Range::kAny>{});
    }
  }

  Block block() const { return {b, 0, queries, keys}; }

  // Loads a block of keys. Returns false if the mask hides all of it.
  bool load(int64_t at) {
    keys = block_keys(at, lo, hi);
    mask = classify_block(a, block(), hidden);
    if (mask == BlockMask::kEmpty) return false;
    has_nonfinite = block_has_nonfinite(a, finite, b, 0, at);
    const int rows = round_up(keys.length, kScoreRows<Real>);
    bool nonfinite_key[kKeyBlock];
    const Real* no_bias = nullptr;
    const Real largest =
        load_units<Stored>(a.key, b, keys, rows, units, no_bias, key, has_nonfinite ? nonfinite_key : nullptr);
    range = range_of(largest_query, largest);
    prepare(range, key, rows, units, Real(1), key);
    if (range != prepared_for) prepare(range, query, queries.length, units, Real(0.5), prepared);
    prepared_for = range;
    return true;
  }

  // Computes the scores of the block, -inf for hidden pairs.
  void score() {
    with_range([&](auto constant) {
      additive_scores<decltype(constant)::value>(query_rows(), queries.length, key, keys.length, vector, units, scores);
    });
    for (int y = 0; y < keys.length; ++y)
      for (int x = queries.length; x < columns; ++x) scores[y * kQueryTile + x] = 0;
    apply_score_mods<Real>(a, block(), columns, mask, hidden, Real(1), scores, nullptr, nullptr);
  }

  // The place of the block's scores in `softmax`, after the statistics of rows.
  template <class Number>
  Number* kept(Number* softmax) const {
    const int64_t rows = score_rows(a), at = keys.begin / kKeyBlock * kKeyBlock;
    return softmax + 2 * a.batch * a.query_length + (b * score_columns(a) + queries.begin) * rows + at * columns;
  }
  void keep(Real* to) const {
    for (int y = 0; y < keys.length; ++y)
      __builtin_memcpy(to + y * columns, scores + y * kQueryTile, static_cast<size_t>(columns) * sizeof(Real));
  }
  void recall(const Real* from) {
    for (int y = 0; y < keys.length; ++y)
      __builtin_memcpy(scores + y * kQueryTile, from + y * columns, static_cast<size_t>(columns) * sizeof(Real));
  }

  Strided<Real> value() const {
    return key_block<Stored, Real>(a.value, b, 0, keys, static_cast<int>(a.value_dim), has_nonfinite, value_copy);
  }
};

// The state of a query tile after some of its keys.
template <class Real>
struct AdditiveState {
  OnlineSoftmax<Real>* running;
  Real *output, *nonfinite;  // V rows of kQueryTile: sums of weight * value; and 1 or 0, see `mark_nonfinite`

  AdditiveState(const HeedAttention& a, Arena& arena)
      : running(arena.take<OnlineSoftmax<Real>>(1)),
        output(arena.take<Real>(kQueryTile * a.value_dim)),
        nonfinite(arena.take<Real>(kQueryTile)) {}

  bool seen(int x) const {
    return running->row_max[x] != -kInfinity<Real> || running->row_sum[x] != running->row_sum[x];
  }
};

template <class Stored>
void additive_forward(const HeedAttention& a, const HeedForward& results, const uint8_t* finite,
                      const AdditivePart& part, char* state_memory, char* scratch) {
  typedef typename Compute<Stored>::Type Real;
  Arena arena(scratch), state_arena(state_memory);
  AdditiveTile<Stored> tile(a, arena);
  tile.begin(finite, part);
  const AdditiveState<Real> state(a, state_arena);
  *state.running = OnlineSoftmax<Real>();
  const int value_dim = static_cast<int>(a.value_dim), columns = tile.columns;
  for (int n = 0; n < value_dim * kQueryTile; ++n) state.output[n] = 0;
  bool sees_nonfinite[kQueryTile] = {};
  Dropout dropout;
  if (a.dropout > 0) dropout.begin(a, part.b, 0, tile.queries);

  for (int64_t at = tile.lo / kKeyBlock; at * kKeyBlock < tile.hi; ++at) {
    if (at % part.parts != part.part || !tile.load(at)) continue;
    tile.score();
    if (keeps_scores(a)) tile.keep(tile.kept(static_cast<Real*>(results.softmax)));
    const Span keys = tile.keys;
    if (tile.has_nonfinite) mark_nonfinite<Stored>(a, tile.block(), 0, tile.mask, tile.hidden, sees_nonfinite);
    online_softmax_columns<Real, false>(*state.running, 0, columns, tile.scores, keys.length, Real(1), tile.scores,
                                        state.output, value_dim);
    if (a.dropout > 0) dropout.apply(keys, columns, tile.scores);
    product(swap_axes(tile.value()), value_dim, tile.scores, kQueryTile, state.output, kQueryTile, columns, keys.length,
            true);
  }
  for (int x = 0; x < tile.queries.length; ++x)
    state.nonfinite[x] = sees_nonfinite[x] || (tile.nonfinite_query[x] && state.seen(x));
}

// Adds the state of another task for the same queries.
template <class Real>
inline void join(const AdditiveState<Real>& all, const AdditiveState<Real>& more, int value_dim) {
  typedef Vector<Real> V;
  for (int x = 0; x < kQueryTile; x += kLanes<Real>) {
    Real *row_max = all.running->row_max + x, *row_sum = all.running->row_sum + x, *nonfinite = all.nonfinite + x;
    const V first = load(row_max), second = load(more.running->row_max + x), higher = larger(first, second);
    const V base = higher > -kInfinity<Real> ? higher : V{};
    const V first_factor = exp2((first - base) * kLog2E<Real>), second_factor = exp2((second - base) * kLog2E<Real>);
    store(row_max, higher);
    store(row_sum, load(row_sum) * first_factor + load(more.running->row_sum + x) * second_factor);
    store(nonfinite, larger(load(nonfinite), load(more.nonfinite + x)));
    for (int c = 0; c < value_dim; ++c) {
      Real* output = all.output + c * kQueryTile + x;
      store(output, load(output) * first_factor + load(more.output + c * kQueryTile + x) * second_factor);
    }
  }
}

// Joins the states of all parts of a tile, `distance` bytes apart, in the first of them, and writes the results.
template <class Stored>
void additive_combine(const HeedAttention& a, const HeedForward& results, const AdditivePart& part, char* states,
                      int64_t distance) {
  typedef typename Compute<Stored>::Type Real;
  const int value_dim = static_cast<int>(a.value_dim);
  Arena arena(states);
  const AdditiveState<Real> all(a, arena);
  for (int64_t p = 1; p < part.parts; ++p) {
    Arena more(states + p * distance);
    join(all, AdditiveState<Real>(a, more), value_dim);
  }
  const Span queries = query_tile(a, part.tile);
  Real factors[kQueryTile] = {};
  for (int x = 0; x < queries.length; ++x) {
    const Real row_max = all.running->row_max[x], row_sum = all.seen(x) ? all.running->row_sum[x] : Real(0);
    factors[x] = write_row(a, results, part.b * a.query_length + queries.begin + x, row_max, row_sum,
                           row_max + natural_log(row_sum), all.nonfinite[x] != 0);
  }
  store_transposed<Stored>(all.output, factors, results.output, part.b, 0, queries, value_dim);
}

}  // namespace HEED_ISA
}  // namespace heed
