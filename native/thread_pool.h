// Threads that wait for work, and one way to give it to them.
#pragma once

#include <cstdint>

namespace heed {

// Calls task(context, index, worker) once for each index < count, from up to `threads` threads, the caller among them.
// Indices are claimed one by one from a counter, so the first ones should be the longest. `worker` < threads tells
// apart the threads of one call, for scratch memory. Any number of threads may call this at once; a child after fork()
// makes threads of its own.
using Task = void (*)(void* context, int64_t index, int worker);
void parallel_for(int64_t count, int threads, Task task, void* context);

}  // namespace heed
