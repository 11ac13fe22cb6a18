// Scratch memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace heed {
namespace HEED_ISA {

// Hands out one piece of memory after the other, each in cache lines of its own. Without memory it only counts.
class Arena {
 public:
  explicit Arena(char* memory) : memory_(memory) {}

  template <class T>
  T* take(int64_t count) {
    T* piece = memory_ ? reinterpret_cast<T*>(memory_ + bytes_) : nullptr;
    bytes_ += (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
    return piece;
  }
  size_t bytes() const { return bytes_; }

 private:
  char* memory_;
  size_t bytes_ = 0;
};

// Bytes that Scratch(attention, arena) takes.
template <class Scratch, class Attention>
size_t scratch_bytes(const Attention& a) {
  Arena arena(nullptr);
  Scratch(a, arena);
  return arena.bytes();
}

}  // namespace HEED_ISA
}  // namespace heed
