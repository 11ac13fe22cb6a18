// A pool of threads, and a parallel loop on it.
#pragma once

#include <cstdint>

namespace heed {

// Calls task(context, index, worker) once for each index < count, from up to `threads` threads, the caller among them.
// Threads claim indices one by one from a counter, so the longest tasks should come first. `worker` < threads
// identifies a thread of the call, for scratch memory. Any number of threads may call this at once; a child after
// fork() makes its own pool.
using Task = void (*)(void* context, int64_t index, int worker);
void parallel_for(int64_t count, int threads, Task task, void* context);

}  // namespace heed
