#include "thread_pool.h"

#include <pthread.h>
#if defined(__linux__)
#include <sched.h>
#endif

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "cpu_quota.h"
#include "include/heed.h"

namespace heed {
namespace {

// Denormal numbers count as 0 while a thread works: they are slow, and all threads must compute the same, whatever mode
// the caller runs in (TensorFlow's threads differ from ours).
class FlushDenormals {
 public:
#if defined(__x86_64__)
  FlushDenormals() : before_(__builtin_ia32_stmxcsr()) { __builtin_ia32_ldmxcsr(before_ | 0x8040u); }
  ~FlushDenormals() { __builtin_ia32_ldmxcsr(before_); }

 private:
  unsigned before_;
#elif defined(__aarch64__)
  FlushDenormals() {
    asm volatile("mrs %0, fpcr" : "=r"(before_));
    asm volatile("msr fpcr, %0" ::"r"(before_ | (uint64_t{1} << 24)));
  }
  ~FlushDenormals() { asm volatile("msr fpcr, %0" ::"r"(before_)); }

 private:
  uint64_t before_;
#endif
};

// One call of parallel_for. It is shared, on the heap: a worker that wakes late may still read it.
struct Job {
  const int64_t count;
  const int threads;
  const Task task;
  void* const context;
  std::atomic<int64_t> next{0};
  std::atomic<int64_t> finished{0};
  std::atomic<int> workers{1};  // the caller is worker 0
  std::mutex mutex;
  std::condition_variable done;

  Job(int64_t indices, int most_threads, Task call, void* with)
      : count(indices), threads(most_threads), task(call), context(with) {}

  void work(int worker) {
    const FlushDenormals mode;
    int64_t claimed = 0;
    for (int64_t index; (index = next.fetch_add(1, std::memory_order_relaxed)) < count; ++claimed)
      task(context, index, worker);
    if (claimed && finished.fetch_add(claimed, std::memory_order_acq_rel) + claimed == count) {
      std::lock_guard<std::mutex> lock(mutex);
      done.notify_all();
    }
  }
};

class Pool {
 public:
  void run(const std::shared_ptr<Job>& job) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      try {
        while (static_cast<int>(threads_.size()) < job->threads - 1) threads_.emplace_back(&Pool::serve, this);
      } catch (const std::system_error&) {
        // The system has no more threads: the existing ones, or the caller alone, do the same work.
      }
      jobs_.push_back(job);
    }
    // Each takes a place in any open job, or finds that threads which were awake have taken them all.
    for (int worker = 1; worker < job->threads; ++worker) wake_.notify_one();
    job->work(0);
    {
      std::unique_lock<std::mutex> lock(job->mutex);
      job->done.wait(lock, [&] { return job->finished.load(std::memory_order_acquire) == job->count; });
    }
    std::lock_guard<std::mutex> lock(mutex_);
    jobs_.erase(std::remove(jobs_.begin(), jobs_.end(), job), jobs_.end());
  }

 private:
  void serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      std::shared_ptr<Job> job;
      int worker = 0;
      for (const auto& open : jobs_) {
        if (open->next.load(std::memory_order_relaxed) >= open->count) continue;
        worker = open->workers.fetch_add(1, std::memory_order_relaxed);
        if (worker < open->threads) {
          job = open;
          break;
        }
      }
      if (!job) {
        wake_.wait(lock);
        continue;
      }
      lock.unlock();
      job->work(worker);
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::shared_ptr<Job>> jobs_;
  std::vector<std::thread> threads_;
};

// Never destroyed: its threads wait for work until the process ends. A child after fork() has none of them, so it makes
// a new pool.
std::atomic<Pool*> pool{nullptr};
std::mutex making;

void forget_pool() {
  pool.store(nullptr);
  new (&making) std::mutex;
}
// Registered when the library is loaded: a process may fork while its first call holds `making`.
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, forget_pool);

Pool& shared_pool() {
  if (Pool* p = pool.load(std::memory_order_acquire)) return *p;
  std::lock_guard<std::mutex> lock(making);
  if (Pool* p = pool.load(std::memory_order_relaxed)) return *p;
  Pool* made = new Pool;
  pool.store(made, std::memory_order_release);
  return *made;
}

// Read when the library is loaded: every op asks for the number of threads.
const int quota_threads = [] {
  try {
    return static_cast<int>(std::ceil(std::min(cpu_quota(""), 65536.0)));
  } catch (...) {
    return 65536;
  }
}();

int processors() {
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
#endif
  return static_cast<int>(std::thread::hardware_concurrency());
}

}  // namespace

void parallel_for(int64_t count, int threads, Task task, void* context) {
  threads = static_cast<int>(std::min<int64_t>(threads, count));
  if (threads <= 1) {
    const FlushDenormals mode;
    for (int64_t index = 0; index < count; ++index) task(context, index, 0);
    return;
  }
  shared_pool().run(std::make_shared<Job>(count, threads, task, context));
}

}  // namespace heed

int heed_available_threads() { return std::max(1, std::min(heed::processors(), heed::quota_threads)); }
