// Memory for packed weights.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "work.h"

namespace heed {

// Moves numbers of others into huge pages, where Linux does (6.1 on): they stay where they are. Else nothing happens.
inline void move_to_huge_pages(const void* numbers, int64_t bytes) {
#if defined(__linux__)
  constexpr int kCollapse = 25;  // MADV_COLLAPSE, which older headers lack
  const auto begin = reinterpret_cast<intptr_t>(numbers), half = static_cast<intptr_t>(kHugePage / 2);
  // Pages whose middle is among these numbers.
  const intptr_t first = (begin + half) / kHugePage * kHugePage, end = begin + bytes - half;
  for (intptr_t page = first; page <= end; page += kHugePage)
    madvise(reinterpret_cast<void*>(page), static_cast<size_t>(kHugePage), kCollapse);
#else
  (void)numbers, (void)bytes;
#endif
}

// Large buffers lie together in huge pages, where the system has them: each step of decoding reads all weights once,
// and with pages of 4 KiB half of that time is spent on finding them.
class WeightMemory {
 public:
  // Zeros, in cache lines of their own.
  template <class T>
  T* allocate_zeros(int64_t count) {
    const size_t bytes = std::max<size_t>(whole_lines(static_cast<size_t>(count) * sizeof(T)), 64);
    void* const buffer = bytes < kLarge ? allocate(64, bytes) : allocate_large(bytes);
    std::memset(buffer, 0, bytes);
    return static_cast<T*>(buffer);
  }

 private:
  static constexpr size_t kPage = kHugePage, kBlock = 16 * kPage;
#ifdef __SANITIZE_ADDRESS__
  static constexpr size_t kLarge = SIZE_MAX;  // each buffer apart, so that reads past one are found
#else
  static constexpr size_t kLarge = kPage / 4;
#endif
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };

  void* allocate(size_t alignment, size_t bytes) {
    owned_.emplace_back(std::aligned_alloc(alignment, bytes));
    if (!owned_.back()) throw std::bad_alloc();
    return owned_.back().get();
  }

  // The system backs a page on its first use, so the rest of a block takes no memory.
  void* allocate_large(size_t bytes) {
    if (bytes > left_) {
      left_ = std::max((bytes + kPage - 1) / kPage * kPage, kBlock);
      next_ = static_cast<char*>(allocate(kPage, left_));
      ask_for_huge_pages(next_, static_cast<int64_t>(left_));
    }
    void* const buffer = next_;
    next_ += bytes, left_ -= bytes;
    return buffer;
  }

  std::vector<std::unique_ptr<void, Free>> owned_;
  char* next_ = nullptr;
  size_t left_ = 0;  // from `next_` to the end of its block
};

}  // namespace heed
