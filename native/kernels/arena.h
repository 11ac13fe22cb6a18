// Scratch memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace heed {
namespace HEED_ISA {

// Hands out buffers of one block of memory, each in its own cache lines. Without memory it only counts bytes.
class Arena {
 public:
  explicit Arena(char* memory) : memory_(memory) {}

  template <class T>
  T* take(int64_t count) {
    T* buffer = memory_ ? reinterpret_cast<T*>(memory_ + bytes_) : nullptr;
    bytes_ += (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
    return buffer;
  }
  size_t bytes() const { return bytes_; }

 private:
  char* memory_;
  size_t bytes_ = 0;
};

// The bytes that Scratch(call, arena) takes.
template <class Scratch, class Call>
size_t scratch_bytes(const Call& call) {
  Arena arena(nullptr);
  Scratch(call, arena);
  return arena.bytes();
}

}  // namespace HEED_ISA
}  // namespace heed
