// Dense layers of few rows. They are bound by memory: weights are read once for all rows.
#pragma once

#include "packs/packs.h"
#include "registry.h"

namespace heed {
namespace HEED_ISA {

inline constexpr int64_t kMostRanges = 64;

// function(begin, end, worker) for ranges of `count` things that make up [0, count), at most `most` of them, on the
// threads of a team. `work`: the multiplications of one thing. A stage of a team costs about a microsecond, so less
// than kLeast stays on one thread.
template <class Function>
inline void share_ranges(Team* team, int count, int64_t work, const Function& function, int64_t most = kMostRanges) {
  constexpr int64_t kLeast = 1 << 16;
  if (!team || count < 2 || work * count < 2 * kLeast) return function(0, count, 0);
  struct Ranges {
    const Function& function;
    int count;
    int64_t ranges;
  } ranges{function, count, min(min(count, most), max(2, work * count / kLeast))};
  share(
      *team, ranges.ranges,
      [](void* context, int64_t index, int worker) {
        const Ranges& r = *static_cast<const Ranges*>(context);
        r.function(static_cast<int>(index * r.count / r.ranges), static_cast<int>((index + 1) * r.count / r.ranges),
                   worker);
      },
      &ranges);
}

// y = x W for all columns, a panel at a time, or kPanelsTogether; a team shares the panels. finish(first column,
// columns) is called while the results are in the cache; `y` holds them from `y_column(first column)` on.
template <class Column, class Finish>
inline void apply_dense_panels(Team* team, const PackedDense& dense, Matrix x, int rows, Matrix y,
                               const Column& y_column, const Finish& finish) {
  with_pack(dense.pack, [&](auto number) {
    constexpr int kTogether = kPanelsTogether<number.value>;
    const Pack<number.value> pack{dense, x, rows};
    const int panels = static_cast<int>((int64_t{dense.outputs} + kPanel - 1) / kPanel);
    const auto multiply = [&](int begin, int end, int) {
      for (int panel = begin; panel < end; panel += kTogether) {
        const int c = panel * kPanel;
        const int columns = panel_columns(dense.outputs, c, static_cast<int>(min(kTogether, end - panel)));
        pack.multiply(c, {y.data + y_column(c), y.stride}, columns);
        finish(c, columns);
      }
    };
    // Few rows wait for memory, which a thread reads faster in long ranges: it prefetches what it reads itself.
    constexpr int64_t kRangesOfThread = 4;
    const int64_t threads = team ? threads_of(*team) : 1;
    const int64_t most = kTogether > 1          ? threads * ((panels + threads * kTogether - 1) / (threads * kTogether))
                         : rows <= Sizes::kRows ? threads * kRangesOfThread
                                                : kMostRanges;
    share_ranges(team, panels, int64_t{rows} * dense.inputs * kPanel, multiply, most);
  });
}

// y = function(x W + b), a vector at a time. Columns up to the next full vector are written too.
template <class Function>
inline void apply_dense(Team* team, const PackedDense& dense, Matrix x, int rows, Matrix y, const Function& function) {
  apply_dense_panels(
      team, dense, x, rows, y, [](int c) { return c; },
      [&](int first, int columns) {
        for (int r = 0; r < rows; ++r)
          for (int c = first; c < first + columns; c += kLanes<float>) {
            float* at = y[r] + c;
            store(at, function(load(at) + load(dense.bias + c)));
          }
      });
}

inline void apply_dense(Team* team, const PackedDense& weights, Matrix x, int rows, Matrix y) {
  apply_dense(team, weights, x, rows, y, [](Vector<float> v) { return v; });
}

}  // namespace HEED_ISA
}  // namespace heed
