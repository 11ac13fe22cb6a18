// Scratch memory and parallel loops, for the files that split work over threads.
#pragma once

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "kernels/registry.h"
#include "refusal.h"
#include "thread_pool.h"

namespace heed {

inline size_t whole_lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

// The scratch memory of one call: all buffers are planned first, then allocated together.
class Scratch {
 public:
  // Equal buffers, each in its own cache lines.
  struct Buffers {
    const Scratch* of;
    size_t begin, bytes;
    char* operator[](int64_t i) const { return of->memory_.get() + begin + bytes * static_cast<size_t>(i); }
  };

  Buffers plan(int64_t count, size_t bytes) {
    const Buffers buffers{this, bytes_, whole_lines(bytes)};
    size_t all = 0;
    if (__builtin_mul_overflow(buffers.bytes, count, &all) || __builtin_add_overflow(bytes_, all, &bytes_))
      throw std::bad_alloc();
    return buffers;
  }
  void allocate() {
    memory_.reset(static_cast<char*>(std::aligned_alloc(64, std::max<size_t>(bytes_, 64))));
    if (!memory_) throw std::bad_alloc();
  }

 private:
  struct Free {
    void operator()(char* p) const { std::free(p); }
  };
  std::unique_ptr<char, Free> memory_;
  size_t bytes_ = 0;
};

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// `threads` 0: as many as this process may use. Only calls with work for several ask: the system takes as long to
// answer as a small call.
inline int limit_threads(int threads, int64_t tasks) {
  if (tasks <= 1) return 1;
  if (threads == 0) threads = cap_threads(heed_available_threads());
  return static_cast<int>(std::min<int64_t>(std::max(1, threads), tasks));
}

// The number of threads that `work` multiplications and additions keep busy. Waking a thread takes 5 to 30 us, in which
// one computes some 100,000 a microsecond: with a smaller share of the work it would come too late to help.
inline int useful_threads(int threads, double work) {
  constexpr double kShare = 2e6;
  return limit_threads(threads, static_cast<int64_t>(std::min(work / kShare, 1e6)));
}

// The work of the forward pass without a mask. A number read from memory counts as eight operations: few queries use it
// in less time than it takes to fetch.
inline double forward_work(const HeedAttention& a) {
  const double batch = static_cast<double>(a.batch), heads = static_cast<double>(a.heads);
  const double queries = static_cast<double>(a.query_length), keys = static_cast<double>(a.key_length);
  const double head_dim = static_cast<double>(a.head_dim), value_dim = static_cast<double>(a.value_dim);
  const double of_pair = (a.score == HEED_ADDITIVE ? 8 : 2) * head_dim + 2 * value_dim;
  const double rows = heads * queries + static_cast<double>(a.kv_heads) * keys;
  return batch * (heads * queries * keys * of_pair + 8 * rows * (head_dim + value_dim));
}
// The work of the backward pass: five products instead of two.
inline double backward_work(const HeedAttention& a) { return 2.5 * forward_work(a); }

// The largest number of parts, up to `parts`, whose sums take at most 64 MiB: `bytes` each, for `count` of them.
inline int64_t parts_within_memory(int64_t parts, int64_t count, size_t bytes) {
  while (parts > 1 && static_cast<double>(bytes) * static_cast<double>(count * parts) > 67108864.0) --parts;
  return parts;
}

// Calls function(index, worker) for each index < count, see parallel_for.
template <class Function>
void for_each(int64_t count, int threads, const Function& function) {
  parallel_for(
      count, threads,
      [](void* context, int64_t index, int worker) { (*static_cast<const Function*>(context))(index, worker); },
      const_cast<Function*>(&function));
}

inline constexpr int64_t kHugePage = int64_t{1} << 21;

// Asks for huge pages in memory that nobody has written yet, whose small ones would take as long to get as what is
// computed in them.
inline void ask_for_huge_pages(void* memory, int64_t bytes) {
#if defined(__linux__)
  char* const begin = static_cast<char*>(memory);
  char* const first = begin + (kHugePage - reinterpret_cast<intptr_t>(begin) % kHugePage) % kHugePage;
  const int64_t whole = (bytes - (first - begin)) / kHugePage * kHugePage;
  if (whole > 0) madvise(first, static_cast<size_t>(whole), MADV_HUGEPAGE);  // small pages work, too
#else
  (void)memory, (void)bytes;
#endif
}

// Sets a large result to 0, with several threads.
inline void set_zeros(void* memory, int64_t bytes, int threads) {
  ask_for_huge_pages(memory, bytes);
  for_each(ceil_div(bytes, kHugePage), threads, [&](int64_t index, int) {
    const int64_t begin = index * kHugePage;
    std::memset(static_cast<char*>(memory) + begin, 0, static_cast<size_t>(std::min(kHugePage, bytes - begin)));
  });
}

// Flags the blocks of keys and values whose numbers are all finite; none without a mask.
inline std::vector<uint8_t> scan_finite(const HeedAttention& a, const Kernels& kernels, int threads) {
  if (a.rule_count == 0) return {};
  std::vector<uint8_t> finite(static_cast<size_t>(a.batch * a.kv_heads * key_blocks(a)));
  for_each(a.batch * a.kv_heads, threads,
           [&](int64_t bk, int) { kernels.scan_finite(a, bk / a.kv_heads, bk % a.kv_heads, finite.data()); });
  return finite;
}

// The partial gradients of keys and values of one key head: rows of the compute type, those of the keys first.
struct KeySums {
  const HeedAttention& a;
  const HeedBackward& pass;
  const Kernels& kernels;
  int key_row;
  int value_row = kernels.gradient_row(a.value_dim);
  size_t values_at = rows_bytes(key_row), bytes = values_at + rows_bytes(value_row);

  size_t rows_bytes(int row) const {
    constexpr int64_t kRows = 16;  // some kernels add whole tiles of rows
    return whole_lines(static_cast<size_t>(ceil_div(a.key_length, kRows) * kRows * row) * kernels.compute_bytes);
  }
  // Sums `parts` of them, adjacent in memory, and writes rows [begin, end) of key head `bk` (b K + kv_head).
  void write(int64_t bk, int64_t begin, int64_t end, const char* sums, int64_t parts) const {
    const int64_t b = bk / a.kv_heads, kv_head = bk % a.kv_heads, distance = static_cast<int64_t>(bytes);
    kernels.write_rows(pass.key_gradient, b, kv_head, begin, end, a.head_dim, key_row, sums, parts, distance);
    kernels.write_rows(pass.value_gradient, b, kv_head, begin, end, a.value_dim, value_row, sums + values_at, parts,
                       distance);
  }
};

}  // namespace heed
