// Additive attention, forward: one panel of queries against the keys that it may see.
//
// As in forward.h, with scores from additive.h in place of a matrix product: keys down and queries across in a block of
// scores, which is all that is held of pairs. The keys of a panel can be shared out among several tasks; each leaves
// the state of its softmax, and the states are joined.
#pragma once

#include "../additive.h"
#include "additive.h"
#include "forward.h"
#include "registry.h"

namespace heed {
namespace HEED_ISA {

// Hands out one piece of memory after the other, each in cache lines of its own. Without memory it only counts.
struct Pieces {
  char* memory;
  size_t bytes = 0;

  template <class T>
  void take(int64_t count, T** piece) {
    *piece = memory ? reinterpret_cast<T*>(memory + bytes) : nullptr;
    bytes += (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
  }
};

// One panel of queries made ready, and the scores of one block of keys at a time.
template <class Stored>
struct AdditivePanel {
  typedef typename Compute<Stored>::Type Real;

  const Attention& a;
  const uint8_t* finite;
  int64_t b, lo, hi;  // the keys that may be seen
  Span queries;
  int columns, units;
  Real *vector, *bias;     // padded like a row of units
  Real *query, *prepared;  // as they are, and as `prepared_for` wants them
  Real *key, *value_copy, *scores;
  typename Lanes<Real>::Integer* hidden;
  Real largest_query;
  bool broken_query[kQueries] = {};  // not finite, where a mask hides something
  // Of the block of keys that was scored last.
  Span keys;
  bool guarded;
  Range range, prepared_for = Range::kAny;

  AdditivePanel(const Additive& additive, const uint8_t* finite_blocks, const AdditivePart& part, Pieces* pieces)
      : a(additive.attention), finite(finite_blocks), b(part.b), units(static_cast<int>(additive.attention.width)) {
    const int stride = units_stride<Real>(units);
    pieces->take(stride, &vector);
    pieces->take(stride, &bias);
    pieces->take(kQueries * stride, &query);
    pieces->take(kQueries * stride, &prepared);
    pieces->take(kKeys * stride, &key);
    pieces->take(kKeys * round_up(a.value_width, Lanes<Real>::kCount), &value_copy);
    pieces->take(kKeys * kQueries, &scores);
    pieces->take(kKeys * kQueries, &hidden);
    if (!pieces->memory) return;
    queries = {part.panel * part.panel_length, 0};
    queries.length = static_cast<int>(least(part.panel_length, a.queries - queries.begin));
    columns = round_up(queries.length, Lanes<Real>::kCount);
    key_range(a, b, queries, &lo, &hi);
    for (int u = 0; u < stride; ++u) {
      vector[u] = u < units ? static_cast<const Real*>(additive.score_vector)[u] : Real(0);
      bias[u] = u < units && additive.bias ? static_cast<const Real*>(additive.bias)[u] : Real(0);
    }
    largest_query = load_units<Stored>(a.query, b, queries, queries.length, units, bias, query,
                                       a.rules > 0 ? broken_query : nullptr);
  }

  const Real* query_rows() const { return range == Range::kAny ? query : prepared; }

  // function(the range as a constant)
  template <class Function>
  HEED_INLINE void with_range(const Function& function) const {
    switch (range) {
      case Range::kSmall: return function(Constant<Range::kSmall>{});
      case Range::kUsual: return function(Constant<Range::kUsual>{});
      case Range::kAny: return function(Constant<Range::kAny>{});
    }
  }

  // Makes a block of keys ready and computes its scores, -inf where hidden. False if there is nothing to see.
  bool score(int64_t block) {
    keys = block_keys(block, lo, hi);
    const Sight sight = look<Real>(a, b, 0, queries, keys, columns, hidden);
    if (sight == Sight::kNone) return false;
    guarded = a.rules > 0 && !finite[b * ((a.keys + kKeys - 1) / kKeys) + block];
    const int rows = round_up(keys.length, kScoreRows<Real>);
    bool broken_key[kKeys];
    const Real* no_bias = nullptr;
    const Real largest = load_units<Stored>(a.key, b, keys, rows, units, no_bias, key, guarded ? broken_key : nullptr);
    range = range_of(largest_query, largest);
    prepare(range, key, rows, units, Real(1), key);
    if (range != prepared_for) prepare(range, query, queries.length, units, Real(0.5), prepared);
    prepared_for = range;
    with_range([&](auto constant) {
      additive_scores<decltype(constant)::value>(query_rows(), queries.length, key, keys.length, vector, units, scores);
    });
    for (int y = 0; y < keys.length; ++y)
      for (int x = queries.length; x < columns; ++x) scores[y * kQueries + x] = 0;
    finish_scores<Real>(a, b, 0, queries, keys, columns, sight, hidden, scores, nullptr);
    return true;
  }

  Strided<Real> value() const {
    return key_block<Stored, Real>(a.value, b, 0, keys, static_cast<int>(a.value_width), guarded, value_copy);
  }
};

// What is known of a panel of queries after some of its keys.
template <class Real>
struct PanelState {
  Running<Real>* running;
  Real* output;  // V rows of kQueries: sums of weight * value
  Real* broken;  // 1 for queries that see something which is not finite, where a mask hides something; else 0

  PanelState(const Attention& a, Pieces* pieces) {
    pieces->take(1, &running);
    pieces->take(kQueries * a.value_width, &output);
    pieces->take(kQueries, &broken);
  }

  bool seen(int x) const {
    return running->highest[x] != -static_cast<Real>(__builtin_inf()) || running->sum[x] != running->sum[x];
  }
};

template <class Stored>
size_t additive_state_bytes(const Additive& additive) {
  Pieces pieces{nullptr};
  PanelState<typename Compute<Stored>::Type>(additive.attention, &pieces);
  return pieces.bytes;
}

template <class Stored>
size_t additive_forward_bytes(const Additive& additive) {
  Pieces pieces{nullptr};
  AdditivePanel<Stored>(additive, nullptr, AdditivePart{}, &pieces);
  return pieces.bytes;
}

template <class Stored>
void additive_forward(const Additive& additive, const uint8_t* finite, const AdditivePart& part, char* state_memory,
                      char* scratch) {
  typedef typename Compute<Stored>::Type Real;
  const Attention& a = additive.attention;
  Pieces pieces{scratch}, state_pieces{state_memory};
  AdditivePanel<Stored> panel(additive, finite, part, &pieces);
  const PanelState<Real> state(a, &state_pieces);
  const int value_width = static_cast<int>(a.value_width), columns = panel.columns;
  for (int n = 0; n < value_width * kQueries; ++n) state.output[n] = 0;
  for (int x = 0; x < kQueries; ++x)
    state.running->highest[x] = -static_cast<Real>(__builtin_inf()), state.running->sum[x] = 0;
  bool sees_broken[kQueries] = {};
  Dropout dropout;
  if (a.dropout > 0) dropout.begin(a, part.b, 0, panel.queries);

  for (int64_t block = panel.lo / kKeys; block * kKeys < panel.hi; ++block) {
    if (block % part.parts != part.part || !panel.score(block)) continue;
    const Span keys = panel.keys;
    if (panel.guarded) mark_broken<Stored>(a, part.b, 0, 0, panel.queries, keys, sees_broken);
    weigh_columns<Real, false>(*state.running, columns, panel.scores, keys.length, Real(1), state.output, value_width);
    if (a.dropout > 0)
      for (int y = 0; y < keys.length; ++y) {
        Real factors[kQueries];
        dropout.factors(keys.begin + y, columns, static_cast<Real>(1 / (1 - a.dropout)), factors);
        for (int c = 0; c < columns; ++c) panel.scores[y * kQueries + c] *= factors[c];
      }
    product(flipped(panel.value()), value_width, panel.scores, kQueries, state.output, kQueries, columns, keys.length,
            true);
  }
  for (int x = 0; x < panel.queries.length; ++x)
    state.broken[x] = sees_broken[x] || (panel.broken_query[x] && state.seen(x));
}

// Adds what another task knows of the same queries.
template <class Real>
inline void join(const PanelState<Real>& all, const PanelState<Real>& more, int value_width) {
  typedef Vector<Real> V;
  constexpr Real kLog2E = static_cast<Real>(1.4426950408889634074);
  for (int x = 0; x < kQueries; x += Lanes<Real>::kCount) {
    Real *highest = all.running->highest + x, *sum = all.running->sum + x, *broken = all.broken + x;
    const V first = load<V>(highest), second = load<V>(more.running->highest + x), higher = larger(first, second);
    const V base = higher > -static_cast<Real>(__builtin_inf()) ? higher : V{};
    const V first_factor = exp2((first - base) * kLog2E), second_factor = exp2((second - base) * kLog2E);
    store(highest, higher);
    store(sum, load<V>(sum) * first_factor + load<V>(more.running->sum + x) * second_factor);
    store(broken, larger(load<V>(broken), load<V>(more.broken + x)));
    for (int c = 0; c < value_width; ++c) {
      Real* output = all.output + c * kQueries + x;
      store(output, load<V>(output) * first_factor + load<V>(more.output + c * kQueries + x) * second_factor);
    }
  }
}

// Joins the states of all parts of a panel, `distance` bytes apart, in the first of them, and writes the results.
template <class Stored>
void additive_finish(const Additive& additive, const Forward& results, const AdditivePart& part, char* states,
                     int64_t distance) {
  typedef typename Compute<Stored>::Type Real;
  const Attention& a = additive.attention;
  const int value_width = static_cast<int>(a.value_width);
  Pieces pieces{states};
  const PanelState<Real> all(a, &pieces);
  for (int64_t p = 1; p < part.parts; ++p) {
    Pieces others{states + p * distance};
    join(all, PanelState<Real>(a, &others), value_width);
  }
  Span queries{part.panel * part.panel_length, 0};
  queries.length = static_cast<int>(least(part.panel_length, a.queries - queries.begin));
  Real factors[kQueries] = {};
  for (int x = 0; x < queries.length; ++x) {
    const Real highest = all.running->highest[x], sum = all.seen(x) ? all.running->sum[x] : Real(0);
    factors[x] = write_row(a, results, part.b * a.queries + queries.begin + x, highest, sum, highest + natural_log(sum),
                           all.broken[x] != 0);
  }
  store_transposed<Stored>(all.output, factors, results.output, part.b, 0, queries, value_width);
}

}  // namespace HEED_ISA
}  // namespace heed
