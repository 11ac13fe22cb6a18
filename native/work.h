// Scratch memory and loops over tasks, for what splits work over threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "attention.h"
#include "kernels/registry.h"
#include "thread_pool.h"

namespace heed {

struct Free {
  void operator()(char* p) const { std::free(p); }
};
using Memory = std::unique_ptr<char, Free>;

// nullptr if there is none left.
inline Memory allocate(size_t bytes) {
  return Memory(static_cast<char*>(std::aligned_alloc(64, (std::max<size_t>(bytes, 64) + 63) / 64 * 64)));
}

inline constexpr const char* kNoMemory = "out of memory for the scratch space of attention";

inline size_t in_cache_lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// function(index, worker) for each index < count, see parallel_for.
template <class Function>
void for_each(int64_t count, int threads, const Function& function) {
  parallel_for(
      count, threads,
      [](void* context, int64_t index, int worker) { (*static_cast<const Function*>(context))(index, worker); },
      const_cast<Function*>(&function));
}

// Which blocks of keys and values hold only finite numbers; asked only where a mask hides something.
inline void scan(const Attention& a, const Kernels& kernels, int threads, std::vector<uint8_t>* finite) {
  if (a.rules == 0) return;
  finite->resize(static_cast<size_t>(a.batch * a.groups * ceil_div(a.keys, kKeyBlock)));
  for_each(a.batch * a.groups, threads,
           [&](int64_t index, int) { kernels.scan(a, index / a.groups, index % a.groups, finite->data()); });
}

}  // namespace heed
