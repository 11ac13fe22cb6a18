// What adapters share: arrays of a framework, as the core's callers read them, and refusals.
#pragma once

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

// Calls function() and returns why it failed, if it did. Any other exception means that memory ran out.
template <class Function>
std::optional<Failed> failure_of(const Function& function) {
  try {
    function();
    return std::nullopt;
  } catch (const Failed& failed) {
    return failed;
  } catch (...) {
    return Failed{"out of memory", true};
  }
}

// Reads structs from bytes, one after the other. `requirement`: the error if they are too short, or go on at `end`.
class Reader {
 public:
  Reader(std::string_view bytes, const char* requirement)
      : at_(bytes.data()), rest_(bytes.size()), requirement_(requirement) {}

  size_t rest() const { return rest_; }
  template <class T>
  Reader& read(T* to, size_t count = 1) {
    if (count > rest_ / sizeof(T)) fail(requirement_);
    if (count) std::memcpy(to, at_, count * sizeof(T));
    at_ += count * sizeof(T), rest_ -= count * sizeof(T);
    return *this;
  }
  template <class T>
  void read(std::vector<T>& to, int64_t count) {
    if (count < 0 || static_cast<size_t>(count) > rest_ / sizeof(T)) fail(requirement_);
    to.resize(static_cast<size_t>(count));
    read(to.data(), to.size());
  }
  void end() const {
    if (rest_) fail(requirement_);
  }

 private:
  const char* at_;
  size_t rest_;
  const char* const requirement_;
};

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
  kInt64,
  kUint32,
  kBool,
  kOther
};

// The type whose number in a framework, in the order of Type, this is; kOther if it is none of them.
template <size_t n>
Type type_of(const int (&numbers)[n], int number) {
  return static_cast<Type>(std::find(numbers, numbers + n, number) - numbers);
}

// The sizes of an array. Few of them need no allocation, and the arrays of a call together little memory: a small op
// would take as long for those as for its work.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> sizes) : Shape(sizes.begin(), sizes.end()) {}
  Shape(const int64_t* first, const int64_t* last) : Shape(of_rank(last - first)) { std::copy(first, last, begin()); }
  static Shape of_rank(int64_t rank) {
    Shape shape;
    shape.rank_ = rank;
    if (rank > kFew) shape.many_.resize(static_cast<size_t>(rank));
    return shape;
  }

  int64_t rank() const { return rank_; }
  int64_t* begin() { return rank_ > kFew ? many_.data() : few_; }
  const int64_t* begin() const { return rank_ > kFew ? many_.data() : few_; }
  const int64_t* end() const { return begin() + rank_; }
  int64_t& operator[](int64_t axis) { return begin()[axis]; }
  int64_t operator[](int64_t axis) const { return begin()[axis]; }
  int64_t& back() { return begin()[rank_ - 1]; }
  int64_t back() const { return begin()[rank_ - 1]; }
  int64_t count() const {
    int64_t numbers = 1;
    for (int64_t n : *this) numbers = times(numbers, n);
    return numbers;
  }

  bool operator==(const Shape& other) const { return std::equal(begin(), end(), other.begin(), other.end()); }
  bool operator!=(const Shape& other) const { return !(*this == other); }

  // "shape (2, 3)"
  std::string text() const {
    std::string text = "shape (";
    for (int64_t axis = 0; axis < rank_; ++axis) text += (axis ? ", " : "") + std::to_string((*this)[axis]);
    return text + ")";
  }
  std::string received() const { return ". Received: " + text(); }

 private:
  static constexpr int64_t kFew = 6;
  int64_t rank_ = 0, few_[kFew] = {};
  std::vector<int64_t> many_;  // in place of `few_` if there are more
};

// Contiguous numbers, which others hold.
struct Array {
  Type type = kOther;
  Shape shape;
  void* data = nullptr;

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

// Throws if an array is not as its name must be. `requirement`: "must ...".
inline void expect(bool holds, const char* name, const char* requirement, const Array& x) {
  if (!holds) fail(std::string("`") + name + "` " + requirement + x.shape.received());
}

inline Type compute_type_of(Type type) { return type == kFloat64 ? kFloat64 : kFloat32; }

}  // namespace heed
