#include "team.h"

#include "decoder/registry.h"

namespace heed {
namespace {

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

void Team::share(int64_t count, Task task, void* context) {
  if (helpers_.load(std::memory_order_relaxed) == 0) {
    for (int64_t index = 0; index < count; ++index) task(context, index, 0);
    return;
  }
  task_.store(task, std::memory_order_relaxed);
  context_.store(context, std::memory_order_relaxed);
  count_.store(count, std::memory_order_relaxed);
  unfinished_.store(count, std::memory_order_relaxed);
  const uint64_t stage = (ticket_.load(std::memory_order_relaxed) & ~kLeft) + (kLeft + 1);
  // A stage never has the number that means the end.
  ticket_.store((stage == kFinished ? kLeft + 1 : stage) | static_cast<uint64_t>(count));
  wake_sleepers();
  while (claim(ticket_.load(std::memory_order_acquire), 0)) {
  }
  wait_until([&] { return unfinished_.load() == 0; });
}

void Team::finish() {
  ticket_.store(kFinished);
  wake_sleepers();
}

void Team::help() {
  const int worker = helpers_.fetch_add(1) + 1;
  for (uint64_t ticket; (ticket = ticket_.load(std::memory_order_acquire)) != kFinished;)
    if (!claim(ticket, worker) && (ticket & kLeft) == 0) wait_until([&] { return ticket_.load() != ticket; });
}

bool Team::claim(uint64_t ticket, int worker) {
  for (;;) {
    const uint64_t left = ticket & kLeft;
    if (left == 0) return false;
    const Task task = task_.load(std::memory_order_relaxed);
    void* const context = context_.load(std::memory_order_relaxed);
    const int64_t index = count_.load(std::memory_order_relaxed) - static_cast<int64_t>(left);
    // On success no other stage has begun, so these are the fields of this one.
    if (!ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel, std::memory_order_acquire))
      continue;
    task(context, index, worker);
    if (unfinished_.fetch_sub(1) == 1) wake_sleepers();
    return true;
  }
}

template <class Ready>
void Team::wait_until(const Ready& ready) {
  constexpr int kSpins = 2000;  // some 50 us
  for (int spin = 0; spin < kSpins; ++spin) {
    if (ready()) return;
    pause();
  }
  std::unique_lock<std::mutex> lock(mutex_);
  sleepers_.fetch_add(1);
  wake_.wait(lock, ready);
  sleepers_.fetch_sub(1);
}

// A sleeper counts itself before it looks a last time, and the state has changed before this looks: one sees the other.
void Team::wake_sleepers() {
  if (sleepers_.load() == 0) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  wake_.notify_all();
}

int threads_of(const Team& team) { return team.threads; }

void share(Team& team, int64_t count, void (*task)(void* context, int64_t index, int worker), void* context) {
  team.share(count, task, context);
}

}  // namespace heed
