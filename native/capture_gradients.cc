#include "capture_gradients.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace heed {
namespace {

// Bytes of sums that tasks have of their own, at most, in all.
constexpr double kMostCopies = 67108864.0;

// Sets of numbers below a bound, joined pair by pair.
class DisjointSets {
 public:
  explicit DisjointSets(size_t count) : parent_(count) { std::iota(parent_.begin(), parent_.end(), int64_t{0}); }

  // The least number of a set.
  int64_t find(int64_t x) {
    while (parent(x) != x) x = parent(x) = parent(parent(x));
    return x;
  }
  void join(int64_t x, int64_t y) {
    const int64_t a = find(x), b = find(y);
    parent(std::max(a, b)) = std::min(a, b);
  }

 private:
  int64_t& parent(int64_t x) { return parent_[static_cast<size_t>(x)]; }

  std::vector<int64_t> parent_;
};

template <class Real>
void write_sums(const double* sums, int64_t begin, int64_t end, int64_t copies, int64_t size, void* to) {
  for (int64_t i = begin; i < end; ++i) {
    double total = 0;
    for (int64_t copy = 0; copy < copies; ++copy) total += sums[copy * size + i];
    static_cast<Real*>(to)[i] = static_cast<Real>(total);
  }
}

}  // namespace

bool TaskGroups::join(const std::vector<std::pair<int64_t, int64_t>>& tasks_and_keys, int64_t least) {
  DisjointSets sets(static_cast<size_t>(tasks_));
  for (const std::vector<int64_t>& group : groups_)
    for (int64_t task : group) sets.join(group.front(), task);
  std::map<int64_t, int64_t> first;  // task of a key
  for (const auto& [task, key] : tasks_and_keys) sets.join(task, first.emplace(key, task).first->second);
  std::map<int64_t, std::vector<int64_t>> joined;
  for (int64_t task = 0; task < tasks_; ++task) joined[sets.find(task)].push_back(task);
  const int64_t count = static_cast<int64_t>(joined.size());
  if (count < std::min(least, tasks_)) return false;
  groups_.clear();
  for (const auto& group : joined)
    if (count < tasks_) groups_.push_back(group.second);
  return true;
}

CaptureGradients::CaptureGradients(const HeedAttention& attention, const HeedBackward& pass, const Kernels& kernels,
                                   int threads)
    : a_(attention), pass_(pass), kernels_(kernels), plan_(*plan_of(attention)), threads_(threads) {
  for (int32_t c = 0; c < plan_.capture_count; ++c)
    if (pass.capture_gradients[c] && plan_.captures[c].size > 0) remaining_.push_back(c);
}

double CaptureGradients::bytes_of(int32_t capture) const {
  return 8 * static_cast<double>(plan_.captures[capture].size);
}

bool CaptureGradients::is_apart(int32_t capture) const {
  for (int i = 0; i < plan_.scatter_count; ++i)
    for (int64_t b = 0; plan_.scatters[i].capture == capture && b < a_.batch; ++b)
      for (int64_t n = 0; n < a_.heads; ++n)
        if (!kernels_.scatters_apart(a_, i, b, n)) return false;
  return true;
}

void CaptureGradients::add_sums(int32_t capture, int64_t copies) {
  const int64_t size = plan_.captures[capture].size;
  sums_.push_back({capture, copies, {}});
  if (copies > 1 || !is_apart(capture)) {
    sums_.back().numbers.resize(static_cast<size_t>(size * copies));
    return;
  }
  set_zeros(pass_.capture_gradients[capture], size * static_cast<int64_t>(kernels_.compute_bytes), threads_);
}

template <class Function>
void CaptureGradients::each_unit(const Function& function) const {
  const int64_t tiles = query_tiles(a_);
  int64_t index = 0;
  for (int64_t b = 0; b < a_.batch; ++b)
    for (int64_t n = 0; n < a_.heads; ++n)
      for (int64_t tile = 0; tile < tiles; ++tile) function(Unit{b, n, tile}, index++);
}

// For each unit the first one that it is connected to by units that may add to the same number of one of these arrays.
std::vector<int64_t> CaptureGradients::components(const std::vector<int32_t>& captures) const {
  struct Range {
    int32_t capture;
    int64_t first, end, unit;
  };
  std::vector<Range> ranges;
  for (int i = 0; i < plan_.scatter_count; ++i) {
    const int32_t capture = plan_.scatters[i].capture;
    if (std::find(captures.begin(), captures.end(), capture) == captures.end()) continue;
    each_unit([&](const Unit& unit, int64_t index) {
      Range range = {capture, 0, 0, index};
      kernels_.scatter_range(a_, i, unit.b, unit.n, unit.tile, &range.first, &range.end);
      ranges.push_back(range);
    });
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& x, const Range& y) {
    return x.capture != y.capture ? x.capture < y.capture : x.first != y.first ? x.first < y.first : x.unit < y.unit;
  });
  const size_t units = static_cast<size_t>(a_.batch * a_.heads * query_tiles(a_));
  DisjointSets sets(units);
  int64_t end = 0;
  for (size_t i = 0; i < ranges.size(); ++i) {
    const bool same = i > 0 && ranges[i - 1].capture == ranges[i].capture;
    if (same && ranges[i].first < end) sets.join(ranges[i - 1].unit, ranges[i].unit);
    end = same ? std::max(end, ranges[i].end) : ranges[i].end;
  }
  std::vector<int64_t> found(units);
  for (size_t unit = 0; unit < units; ++unit) found[unit] = sets.find(static_cast<int64_t>(unit));
  return found;
}

void CaptureGradients::plan(TaskGroups* groups, const std::function<int64_t(const Unit&)>& task_of) {
  const int64_t tasks = groups->tasks();
  double copied = 0;
  std::vector<int32_t> left;
  for (int32_t capture : remaining_) {
    const auto of_capture = [capture](const Plan::Scatter& scatter) { return scatter.capture == capture; };
    if (tasks <= 1 || std::none_of(plan_.scatters, plan_.scatters + plan_.scatter_count, of_capture)) {
      add_sums(capture, 1);
      continue;
    }
    const double bytes = bytes_of(capture) * static_cast<double>(tasks);
    const bool fits = copied + bytes <= kMostCopies;
    if (!fits || is_apart(capture)) {
      const std::vector<int64_t> component = components({capture});
      std::vector<std::pair<int64_t, int64_t>> of_tasks;
      each_unit([&](const Unit& unit, int64_t index) {
        of_tasks.emplace_back(task_of(unit), component[static_cast<size_t>(index)]);
      });
      if (groups->join(of_tasks, kPartTasks / 2)) {
        add_sums(capture, 1);
        continue;
      }
    }
    if (fits) {
      copied += bytes;
      add_sums(capture, tasks);
    } else {
      left.push_back(capture);
    }
  }
  remaining_ = left;
}

std::vector<CaptureSum> CaptureGradients::sums_of(int64_t task) {
  std::vector<CaptureSum> sums(HEED_MAX_CAPTURES);
  for (Sums& s : sums_) {
    CaptureSum& sum = sums[static_cast<size_t>(s.capture)];
    if (s.numbers.empty())
      sum.gradient = pass_.capture_gradients[s.capture];
    else
      sum.sums = s.numbers.data() + (s.copies > 1 ? task * plan_.captures[s.capture].size : 0);
  }
  return sums;
}

void CaptureGradients::write() {
  constexpr int64_t kTogether = 65536;
  for (const Sums& s : sums_) {
    if (s.numbers.empty()) continue;
    const int64_t size = plan_.captures[s.capture].size;
    void* to = pass_.capture_gradients[s.capture];
    for_each(ceil_div(size, kTogether), threads_, [&](int64_t chunk, int) {
      const int64_t begin = chunk * kTogether, end = std::min(size, begin + kTogether);
      (plan_.is_double ? write_sums<double> : write_sums<float>)(s.numbers.data(), begin, end, s.copies, size, to);
    });
  }
  sums_.clear();
}

void CaptureGradients::compute(const uint8_t* finite) {
  // Enough tasks that add to different numbers; or parts with sums of their own.
  const std::vector<int64_t> component = components(remaining_);
  std::map<int64_t, std::vector<Unit>> tasks;
  each_unit([&](const Unit& unit, int64_t index) { tasks[component[static_cast<size_t>(index)]].push_back(unit); });
  const bool apart = static_cast<int64_t>(tasks.size()) >= kPartTasks / 2;
  if (!apart) {
    double bytes = 0;
    for (int32_t capture : remaining_) bytes += bytes_of(capture);
    int64_t parts = std::min(kPartTasks, static_cast<int64_t>(component.size()));
    while (parts > 1 && bytes * static_cast<double>(parts) > kMostCopies) --parts;
    tasks.clear();
    each_unit([&](const Unit& unit, int64_t index) { tasks[index % parts].push_back(unit); });
  }
  for (int32_t capture : remaining_) add_sums(capture, apart ? 1 : static_cast<int64_t>(tasks.size()));
  remaining_.clear();
  std::vector<const std::vector<Unit>*> units;
  for (const auto& task : tasks) units.push_back(&task.second);
  const int64_t count = static_cast<int64_t>(units.size());
  const int threads = limit_threads(threads_, count);
  Scratch memory;
  const auto scratch = memory.plan(threads, kernels_.backward_bytes(a_));
  memory.allocate();
  for_each(count, threads, [&](int64_t task, int worker) {
    const std::vector<CaptureSum> sums = sums_of(task);
    for (const Unit& unit : *units[static_cast<size_t>(task)]) {
      const TileRange range{unit.b, unit.b + 1, unit.n, unit.n + 1, unit.tile, unit.tile + 1};
      kernels_.capture_gradients(a_, pass_, finite, range, sums.data(), scratch[worker]);
    }
  });
  write();
}

}  // namespace heed
