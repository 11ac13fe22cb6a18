// What adapters share: arrays of a framework, as the core's callers read them, and refusals.
#pragma once

#include <algorithm>
#include <string>

#include "../../include/heed.h"

namespace heed {

// A call that cannot run, and why.
struct Failed {
  std::string text;
  bool lacks_memory = false;
};

[[noreturn]] inline void fail(const std::string& text) { throw Failed{text}; }

// Throws an error of the core.
inline void check(const char* problem) {
  if (problem) fail(problem);
}

// a * b, for sizes of arrays. It may wrap for empty ones, whose other sizes can be any: nothing uses the product then.
inline int64_t times(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}

// Types of numbers: those of HeedDtype, and others.
enum Type : int32_t {
  kFloat32 = HEED_FLOAT32,
  kFloat64 = HEED_FLOAT64,
  kBfloat16 = HEED_BFLOAT16,
  kFloat16 = HEED_FLOAT16,
  kInt32,
  kUint32,
  kBool,
  kOther
};

struct Shape {
  static constexpr int64_t kMostAxes = 4;
  int64_t rank = 0, dims[kMostAxes] = {};  // of a larger rank the first sizes

  Shape() = default;
  Shape(std::initializer_list<int64_t> sizes) : Shape(sizes.begin(), static_cast<int64_t>(sizes.size())) {}
  Shape(const int64_t* sizes, int64_t count) : rank(count) {
    std::copy(sizes, sizes + std::min(count, kMostAxes), dims);
  }

  bool operator!=(const Shape& other) const {
    return rank != other.rank || rank > kMostAxes || !std::equal(dims, dims + rank, other.dims);
  }

  // ". Received: shape (2, 3)"
  std::string described() const {
    std::string text = ". Received: shape (";
    for (int64_t axis = 0; axis < std::min(rank, kMostAxes); ++axis) {
      if (axis) text += ", ";
      text += std::to_string(dims[axis]);
    }
    return text + (rank > kMostAxes ? ", ...)" : ")");
  }
};

// Contiguous numbers, which others hold.
struct Array {
  Type type = kOther;
  Shape shape;
  void* data = nullptr;
};

}  // namespace heed
