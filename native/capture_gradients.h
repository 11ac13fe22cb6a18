// The gradients of a program's captured arrays, which are sums over pairs.
//
// Sums are in double. Tasks that run at the same time must not add to the same number, so either they add to different
// ones, as bounds of the indices show, or each has sums of its own, which are added up in the end. Which it is depends
// on the call alone, and so does the order of each sum.
#pragma once

#include <functional>
#include <vector>

#include "work.h"

namespace heed {

// The pairs of a query tile of a head.
struct Unit {
  int64_t b, n, tile;
};

class CaptureGradients {
 public:
  // The captured arrays whose gradients are wanted.
  CaptureGradients(const HeedAttention& attention, const HeedBackward& pass, const Kernels& kernels, int threads);

  // Whether any remain to be computed.
  bool any() const { return !remaining_.empty(); }
  // For a call without pairs.
  void write_zeros() {
    plan(0, nullptr);
    write();
  }

  // For tasks that run at the same time, each with the units that `task_of` gives it: plans the sums of as many arrays
  // as possible; the others remain for a pass of their own.
  void plan(int64_t tasks, const std::function<int64_t(const Unit&)>& task_of);
  // The sums of a task, by captured array; null for none. Each task asks once, before it begins.
  std::vector<double*> sums_of(int64_t task);
  // Adds up and writes the arrays planned.
  void write();

  // The pass of its own.
  void compute(const uint8_t* finite);

 private:
  struct Sums {
    int32_t capture;
    int64_t copies;  // 1: all tasks share the sums
    std::vector<double> numbers;
  };

  std::vector<int64_t> components(const std::vector<int32_t>& captures) const;
  double bytes_of(int32_t capture) const;
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
