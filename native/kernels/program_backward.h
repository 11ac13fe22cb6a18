// The derivative of a program: turns the gradients of modified scores into those of the scores before, and adds to the
// gradients of captured arrays.
#pragma once

#include "program.h"

namespace heed {
namespace HEED_ISA {

// Adds the gradients of one scatter in a block to the sums of its captured array, strip by strip. The more pairs share
// an index, the more of them are summed first.
template <class Real>
class ScatterRun {
  typedef Vector<Real> V;
  typedef typename Kit<Real>::I I;

 public:
  ScatterRun(const Plan& plan, const Plan::Scatter& scatter, const ProgramRun<Real>& run, int queries, double* sums)
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
      if (dependence_ == kOnKey)
        sums_[index_of(index_.at(first, y))] += static_cast<double>(sum_of_lanes<Real>(of_key));
    }
    if (dependence_ == kOnQuery)
      for (int v = 0; v < vectors_; ++v) add_lanes(index_.at(first, 0) + v * index_.column, of_queries[v], v);
    if (dependence_ == kOnNothing) {
      V of_all{};
      for (int v = 0; v < vectors_; ++v) of_all += of_queries[v];
      sums_[index_of(index_.at(first, 0))] += static_cast<double>(sum_of_lanes<Real>(of_all));
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
    for (int lane = 0; lane < lanes_of(v); ++lane) sums_[at[lane]] += static_cast<double>(numbers[lane]);
  }

  // Of pairs whose indices lie on a line: adjacent sums one after the other.
  void add_line(const Real* upstream, int first, int rows) const {
    constexpr int kTogether = 16;
    Real numbers[kTogether][kQueryTile];
    for (int done = 0; done < rows; done += kTogether) {
      const int together = static_cast<int>(min(rows - done, kTogether));
      for (int y = 0; y < together; ++y)
        for (int v = 0; v < vectors_; ++v) {
          const V above = load(upstream + (first + done + y) * kQueryTile + v * kLanes<Real>);
          const V gradient = load_as<V>(gradient_.at(first, done + y) + v * gradient_.column);
          store(numbers[y] + v * kLanes<Real>, above == 0 ? V{} : gradient);
        }
      double* to = sums_ + line_->start + (first + done) * line_->by_key;
      if (line_->by_key == 1 && line_->by_query * line_->by_query != 1) {
        for (int v = 0; v < vectors_; ++v)
          for (int y = 0; y < together; y += kLanes<Real>)
            add_columns(&numbers[y][v * kLanes<Real>], static_cast<int>(min(together - y, kLanes<Real>)), lanes_of(v),
                        to + v * kLanes<Real> * line_->by_query + y);
        continue;
      }
      for (int y = 0; y < together; ++y, to += line_->by_key)
        if (line_->by_query == 1)
          for (int x = 0; x < queries_; ++x) to[x] += static_cast<double>(numbers[y][x]);
        else if (line_->by_query == -1)
          for (int x = 0; x < queries_; ++x) to[-x] += static_cast<double>(numbers[y][x]);
        else
          for (int x = 0; x < queries_; ++x) to[x * line_->by_query] += static_cast<double>(numbers[y][x]);
    }
  }

  // Adds up to a square of numbers, transposed.
  HEED_INLINE void add_columns(const Real* numbers, int rows, int columns, double* to) const {
    V square[kLanes<Real>] = {};
    for (int y = 0; y < rows; ++y) square[y] = load(numbers + y * kQueryTile);
    transpose<Real>(square);
    for (int x = 0; x < columns; ++x, to += line_->by_query) {
      Real column[kLanes<Real>];
      store(column, square[x]);
      if (rows == kLanes<Real>)
        for (int y = 0; y < kLanes<Real>; ++y) to[y] += static_cast<double>(column[y]);
      else
        for (int y = 0; y < rows; ++y) to[y] += static_cast<double>(column[y]);
    }
  }

  Dependence dependence_;
  const HeedCapture* capture_;
  Operand index_, gradient_;
  const Line* line_;
  int vectors_, queries_;
  double* sums_;
};

// Turns `gradients` of the modified scores of a block into those of the scores `raw`, in place, and adds those of
// captured arrays to `sums`, an array for each of them or null. Pairs with gradient 0 add nothing.
template <class Real>
inline void derive_scores(const Plan& plan, const Block& block, const Real* raw, double* const* sums, Real* gradients) {
  typedef Vector<Real> V;
  const ProgramRun<Real> run(plan, plan.derivative, block, kTileLayout, raw, gradients);
  run.strips([&](int first, int rows) {
    for (int i = 0; sums && i < plan.scatter_count; ++i)
      if (double* of_capture = sums[plan.scatters[i].capture])
        ScatterRun<Real>(plan, plan.scatters[i], run, block.queries.length, of_capture).add(gradients, first, rows);
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

}  // namespace HEED_ISA
}  // namespace heed
