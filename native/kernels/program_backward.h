// The derivative of a program: turns the gradients of modified scores into those of the scores before, and adds to the
// gradients of captured arrays.
#pragma once

#include "program.h"

namespace heed {
namespace HEED_ISA {

// Adds the gradients of one scatter in a block to the sums of its captured array, strip by strip. The more pairs share
// an index, the more of them are summed first.
template <class Real, class Sum>
class ScatterRun {
  typedef Vector<Real> V;
  typedef typename Kit<Real>::I I;

 public:
  ScatterRun(const Plan& plan, const Plan::Scatter& scatter, const ProgramRun<Real>& run, int queries, Sum* sums)
      : dependence_(plan.derivative.steps[scatter.index].dependence),
        capture_(plan.captures + scatter.capture),
        index_(run.values(scatter.index)),
        gradient_(run.values(scatter.gradient)),
        line_(run.line(plan, scatter)),
        vectors_(run.vectors()),
        queries_(queries),
        sums_(sums) {}

  void add(const Real* upstream, int first, int rows) const {
    if (line_) return add_line(upstream, first, rows);
    V of_queries[kQueryTile / kLanes<Real>] = {};
    for (int y = 0; y < rows; ++y) {
      const char* from = gradient_.at(first, y);
      const char* index = index_.at(first, y);
      V of_key{};
      for (int v = 0; v < vectors_; ++v, from += gradient_.column, index += index_.column) {
        const V above = load(upstream + (first + y) * kQueryTile + v * kLanes<Real>);
        const V gradient = above == 0 ? V{} : load_as<V>(from);
        if (dependence_ == kOnKey)
          of_key += gradient;
        else if (dependence_ == kOnPair)
          add_lanes(index, gradient, v);
        else
          of_queries[v] += gradient;
      }
      if (dependence_ == kOnKey) sums_[index_of(index_.at(first, y))] += static_cast<Sum>(sum_of_lanes<Real>(of_key));
    }
    if (dependence_ == kOnQuery)
      for (int v = 0; v < vectors_; ++v) add_lanes(index_.at(first, 0) + v * index_.column, of_queries[v], v);
    if (dependence_ == kOnNothing) {
      V of_all{};
      for (int v = 0; v < vectors_; ++v) of_all += of_queries[v];
      sums_[index_of(index_.at(first, 0))] += static_cast<Sum>(sum_of_lanes<Real>(of_all));
    }
  }

 private:
  I bounded(const char* index) const { return bounded_index<Kit<Real>>(load_as<I>(index), *capture_); }
  int32_t index_of(const char* index) const { return bounded(index)[0]; }
  // How many queries vector v has. Its other lanes are zeros, but nothing may be added where another task may add.
  HEED_INLINE int lanes_of(int v) const { return static_cast<int>(min(queries_ - v * kLanes<Real>, kLanes<Real>)); }
  HEED_INLINE void add_lanes(const char* index, V gradient, int v) const {
    int32_t at[kLanes<Real>];
    Real numbers[kLanes<Real>];
    store(at, bounded(index));
    store(numbers, gradient);
    for (int lane = 0; lane < lanes_of(v); ++lane) sums_[at[lane]] += static_cast<Sum>(numbers[lane]);
  }

  // The gradients of vector v of a row; of pairs with gradient 0 they are 0.
  HEED_INLINE V gradients(const Real* upstream, int first, int y, int v) const {
    const V above = load(upstream + (first + y) * kQueryTile + v * kLanes<Real>);
    return above == 0 ? V{} : load_as<V>(gradient_.at(first, y) + v * gradient_.column);
  }

  // Of pairs whose indices lie on a line: adjacent sums together.
  void add_line(const Real* upstream, int first, int rows) const {
    Sum* to = sums_ + line_->start + first * line_->by_key;
    const int64_t by_query = line_->by_query, by_key = line_->by_key;
    if (by_key == 1 && by_query != 1 && by_query != -1) {
      for (int y = 0; y < rows; y += kLanes<Real>)
        for (int v = 0; v < vectors_; ++v)
          add_square(upstream, first, y, static_cast<int>(min(rows - y, kLanes<Real>)), v,
                     to + v * kLanes<Real> * by_query + y);
      return;
    }
    for (int y = 0; y < rows; ++y, to += by_key)
      for (int v = 0; v < vectors_; ++v) {
        const V x = gradients(upstream, first, y, v);
        const int count = lanes_of(v);
        Sum* at = to + v * kLanes<Real> * by_query;
        if (by_query == 1) {
          add_adjacent(at, x, count);
        } else if (by_query == -1 && count == kLanes<Real>) {
          add_adjacent(at - kLanes<Real> + 1, shuffle<Real>(x, x, Reversed<kLanes<Real>>{}), count);
        } else {
          Real numbers[kLanes<Real>];
          store(numbers, x);
          for (int lane = 0; lane < count; ++lane) at[lane * by_query] += static_cast<Sum>(numbers[lane]);
        }
      }
  }

  // Adds up to a square of numbers, transposed.
  HEED_INLINE void add_square(const Real* upstream, int first, int y, int rows, int v, Sum* to) const {
    V square[kLanes<Real>] = {};
    for (int r = 0; r < rows; ++r) square[r] = gradients(upstream, first, y + r, v);
    transpose<Real>(square);
    for (int x = 0; x < lanes_of(v); ++x, to += line_->by_query) {
      __builtin_prefetch(to + kKeyBlock, 1, 2);  // of the next keys
      add_adjacent(to, square[x], rows);
    }
  }

  // Adds the first `count` lanes to adjacent sums.
  static HEED_INLINE void add_adjacent(Sum* to, V x, int count) {
    if constexpr (sizeof(Sum) == sizeof(Real)) {
      if (count == kLanes<Real>) return store(to, load(to) + x);
    }
    Real numbers[kLanes<Real>];
    store(numbers, x);
    if (count == kLanes<Real>)
      for (int lane = 0; lane < kLanes<Real>; ++lane) to[lane] += static_cast<Sum>(numbers[lane]);
    else
      for (int lane = 0; lane < count; ++lane) to[lane] += static_cast<Sum>(numbers[lane]);
  }

  Dependence dependence_;
  const HeedCapture* capture_;
  Operand index_, gradient_;
  const Line* line_;
  int vectors_, queries_;
  Sum* sums_;
};

// Turns `gradients` of the modified scores of a block into those of the scores before, in place, from the blocks of
// `kept` values, and adds those of captured arrays to `sums`, one for each of them, or null. Pairs with gradient 0 add
// nothing.
template <class Real>
inline void derive_scores(const Plan& plan, const Block& block, const Real* kept, const CaptureSum* sums,
                          Real* gradients) {
  typedef Vector<Real> V;
  const bool keeps_gradients =
      plan.gradient_step >= 0 && plan.derivative.steps[plan.gradient_step].opcode == HEED_OP_UPSTREAM;
  bool adds = false;
  for (int i = 0; sums && i < plan.scatter_count; ++i) {
    const CaptureSum& sum = sums[plan.scatters[i].capture];
    adds |= sum.gradient || sum.sums;
  }
  if (keeps_gradients && !adds) return;
  const ProgramRun<Real> run(plan, plan.derivative, block, kTileLayout, nullptr, kept, gradients);
  run.strips([&](int first, int rows) {
    for (int i = 0; adds && i < plan.scatter_count; ++i) {
      const Plan::Scatter& scatter = plan.scatters[i];
      const CaptureSum& sum = sums[scatter.capture];
      const int queries = block.queries.length;
      if (Real* gradient = static_cast<Real*>(sum.gradient))
        ScatterRun<Real, Real>(plan, scatter, run, queries, gradient).add(gradients, first, rows);
      else if (sum.sums)
        ScatterRun<Real, double>(plan, scatter, run, queries, sum.sums).add(gradients, first, rows);
    }
    if (keeps_gradients) return;
    const bool is_zero = plan.gradient_step < 0;
    const Operand derived = is_zero ? Operand{} : run.values(plan.gradient_step);
    for (int y = 0; y < rows; ++y) {
      const char* from = derived.at(first, y);
      Real* to = gradients + (first + y) * kQueryTile;
      for (int v = 0; v < run.vectors(); ++v, from += derived.column, to += kLanes<Real>)
        store(to, is_zero ? V{} : load(to) == 0 ? V{} : load_as<V>(from));
    }
  });
}

// The indices [*first, *end) of a captured array to which a scatter of a query tile may add.
inline void scatter_range(const HeedAttention& a, int scatter, int64_t b, int64_t n, int64_t tile, int64_t* first,
                          int64_t* end) {
  const Plan& plan = *plan_of(a);
  const Span queries = query_tile(a, tile);
  const PairRange pairs{b, n, n, queries.begin, queries.begin + queries.length - 1, 0, max(a.key_length - 1, 0)};
  const Bounds index = bounds_of_step(plan, plan.derivative, plan.scatters[scatter].index, pairs);
  const double last = static_cast<double>(plan.captures[plan.scatters[scatter].capture].size - 1);
  *first = static_cast<int64_t>(lower(higher(index.least, 0), last));
  *end = static_cast<int64_t>(lower(higher(index.most, 0), last)) + 1;
}

inline bool scatters_apart(const HeedAttention& a, int scatter, int64_t b, int64_t n) {
  const Plan& plan = *plan_of(a);
  const int queries = static_cast<int>(max(1, a.query_length)), keys = static_cast<int>(max(1, a.key_length));
  Bounds known[HEED_MAX_INSTRUCTIONS];
  Line lines[HEED_MAX_INSTRUCTIONS];
  follow_bounds(plan, plan.derivative, plan.derivative.count - 1, {b, n, n, 0, queries - 1, 0, keys - 1}, known);
  follow_lines(plan.derivative, {b, n, {0, queries}, {0, keys}}, known, lines);
  const Line& line = lines[plan.scatters[scatter].index];
  const int64_t across = max(line.by_query, -line.by_query), down = max(line.by_key, -line.by_key);
  return line.within(queries, keys, 0, plan.captures[plan.scatters[scatter].capture].size) &&
         ((down > 0 && across >= down * keys) || (across > 0 && down >= across * queries));
}

}  // namespace HEED_ISA
}  // namespace heed
