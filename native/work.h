// Scratch memory and loops over tasks, for what splits work over threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

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

inline int64_t query_tiles(const HeedAttention& a) { return ceil_div(a.query_length, kQueryTile); }

inline int at_most(int threads, int64_t tasks) {
  return static_cast<int>(std::min<int64_t>(std::max(1, threads), std::max<int64_t>(1, tasks)));
}

// As many parts, at most, as have `bytes` of sums each in 64 MiB for all of `count`.
inline int64_t parts_within_memory(int64_t parts, int64_t count, size_t bytes) {
  while (parts > 1 && static_cast<double>(bytes) * static_cast<double>(count * parts) > 67108864.0) --parts;
  return parts;
}

// function(index, worker) for each index < count, see parallel_for.
template <class Function>
void for_each(int64_t count, int threads, const Function& function) {
  parallel_for(
      count, threads,
      [](void* context, int64_t index, int worker) { (*static_cast<const Function*>(context))(index, worker); },
      const_cast<Function*>(&function));
}

// Which blocks of keys and values hold only finite numbers; asked only where a mask hides something.
inline void scan(const HeedAttention& a, const Kernels& kernels, int threads, std::vector<uint8_t>* finite) {
  if (a.rule_count == 0) return;
  finite->resize(static_cast<size_t>(a.batch * a.kv_heads * key_blocks(a)));
  for_each(a.batch * a.kv_heads, threads,
           [&](int64_t index, int) { kernels.scan(a, index / a.kv_heads, index % a.kv_heads, finite->data()); });
}

}  // namespace heed
