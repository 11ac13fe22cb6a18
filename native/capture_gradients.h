// The gradients of a program's captured arrays, which are sums over pairs.
//
// Sums are in double; where each pair of a head has a number of its own, as in a bias, they are the gradient itself.
// Tasks that run at the same time must not add to the same number. So either they add to different ones, as bounds of
// the indices show, and those that add to the same ones run one after another; or each has sums of its own, which are
// added up in the end. Which it is depends on the call alone, and so does the order of each sum.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "work.h"

namespace heed {

// The pairs of a query tile of a head.
struct Unit {
  int64_t b, n, tile;
};

// Tasks, some of which are in a group: these run one after another, in their order.
class TaskGroups {
 public:
  explicit TaskGroups(int64_t tasks) : tasks_(tasks) {}

  // Joins the groups of tasks with the same key; a task may have several. Returns false, and changes nothing, if fewer
  // than `least` groups were left.
  bool join(const std::vector<std::pair<int64_t, int64_t>>& tasks_and_keys, int64_t least);
  int64_t tasks() const { return tasks_; }
  // Calls function(task, worker) for each task, see parallel_for.
  template <class Function>
  void run(int threads, const Function& function) const {
    if (groups_.empty()) return for_each(tasks_, threads, function);
    for_each(static_cast<int64_t>(groups_.size()), threads, [&](int64_t group, int worker) {
      for (int64_t task : groups_[static_cast<size_t>(group)]) function(task, worker);
    });
  }

 private:
  int64_t tasks_;
  std::vector<std::vector<int64_t>> groups_;  // none: each task is one
};

class CaptureGradients {
 public:
  // The captured arrays whose gradients are wanted.
  CaptureGradients(const HeedAttention& attention, const HeedBackward& pass, const Kernels& kernels, int threads);

  // Whether any remain to be computed.
  bool any() const { return !remaining_.empty(); }
  // For a call without pairs.
  void write_zeros() {
    TaskGroups none(0);
    plan(&none, nullptr);
    write();
  }

  // For tasks that run at the same time, each with the units that `task_of` gives it: plans the sums of as many arrays
  // as possible, and groups tasks for them; the others remain for a pass of their own.
  void plan(TaskGroups* groups, const std::function<int64_t(const Unit&)>& task_of);
  // The sums of a task, by captured array. Each task asks once, before it begins.
  std::vector<CaptureSum> sums_of(int64_t task);
  // Adds up and writes the arrays planned.
  void write();

  // The pass of its own.
  void compute(const uint8_t* finite);

 private:
  struct Sums {
    int32_t capture;
    int64_t copies;               // 1: all tasks share the sums
    std::vector<double> numbers;  // none: the gradient itself
  };

  std::vector<int64_t> components(const std::vector<int32_t>& captures) const;
  double bytes_of(int32_t capture) const;
  // Whether each pair of a head has a number of its own, so that few numbers are added to one.
  bool is_apart(int32_t capture) const;
  void add_sums(int32_t capture, int64_t copies);
  template <class Function>
  void each_unit(const Function& function) const;

  const HeedAttention& a_;
  const HeedBackward& pass_;
  const Kernels& kernels_;
  const Plan& plan_;
  int threads_;
  std::vector<int32_t> remaining_;
  std::vector<Sums> sums_;
};

}  // namespace heed
