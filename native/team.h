// A few threads that stay together for a whole decoding and share its stages, most of which take microseconds.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "thread_pool.h"

namespace heed {

// One leader publishes stages; helpers claim their tasks. The leader never waits for a helper that has not come: then
// it does all tasks itself. Threads spin a short time and then sleep, so they do not take processors from others for
// long.
class Team {
 public:
  int threads = 1;  // at most, with the leader; set before it starts

  // Of the leader: calls task(context, index, worker) once for each index < count, from any thread of the team, and
  // returns when all calls have returned. `worker` is 0 for the leader and i for the i-th helper.
  void share(int64_t count, Task task, void* context);
  // Of the leader: sends the helpers away.
  void finish();
  // Of a helper: works until the leader has finished.
  void help();

 private:
  template <class Ready>
  void wait_until(const Ready& ready);
  void wake_sleepers();
  // Does one task of the stage that `ticket` names, if it has one left.
  bool claim(uint64_t ticket, int worker);

  static constexpr uint64_t kLeft = 0xffffffffu, kFinished = ~kLeft;
  // The number of the stage, and in the lower half the number of its tasks that are not claimed. While one is left, the
  // fields of the stage do not change.
  std::atomic<uint64_t> ticket_{0};
  std::atomic<Task> task_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::atomic<int64_t> count_{0}, unfinished_{0};
  std::atomic<int> helpers_{0}, sleepers_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
};

}  // namespace heed
