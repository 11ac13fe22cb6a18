// Tensors and errors of TensorFlow's C API, which release themselves.
#pragma once

#include <initializer_list>
#include <iterator>
#include <memory>
#include <vector>

#include "../shared/array.h"
#include "tensorflow_c.h"

namespace heed::tf {

struct Release {
  void operator()(TF_Tensor* tensor) const { TF_DeleteTensor(tensor); }
  void operator()(TF_Status* status) const { TF_DeleteStatus(status); }
  void operator()(TF_ShapeHandle* shape) const { TF_DeleteShapeHandle(shape); }
};
template <class T>
using Owned = std::unique_ptr<T, Release>;

// The sizes of a tensor, without an allocation: a small op would take as long for those as for its work.
class Dims {
 public:
  Dims() = default;
  Dims(std::initializer_list<int64_t> sizes) : Dims(sizes.begin(), sizes.end()) {}
  Dims(const int64_t* first, const int64_t* last) : end_(std::copy(first, last, sizes_)) {}
  Dims(const Dims& other) : Dims(other.begin(), other.end()) {}
  Dims& operator=(const Dims& other) {
    end_ = std::copy(other.begin(), other.end(), sizes_);
    return *this;
  }

  const int64_t* data() const { return sizes_; }
  const int64_t* begin() const { return sizes_; }
  const int64_t* end() const { return end_; }
  size_t size() const { return static_cast<size_t>(end_ - sizes_); }
  bool empty() const { return end_ == sizes_; }
  int64_t& operator[](size_t axis) { return sizes_[axis]; }
  int64_t operator[](size_t axis) const { return sizes_[axis]; }
  int64_t& back() { return end_[-1]; }
  void push_back(int64_t size) { *end_++ = size; }

  bool operator==(const Dims& other) const { return std::equal(begin(), end(), other.begin(), other.end()); }
  bool operator!=(const Dims& other) const { return !(*this == other); }

 private:
  int64_t sizes_[254];  // TensorFlow has no more axes
  int64_t* end_ = sizes_;
};

// "shape (2, 3)"
inline std::string described(const Dims& dims) {
  std::string text = "shape (";
  for (size_t axis = 0; axis < dims.size(); ++axis) text += (axis ? ", " : "") + std::to_string(dims[axis]);
  return text + ")";
}

// The TF_DataType of each Type but the last.
inline constexpr int kDataTypes[] = {1, 2, 14, 19, 3, 22, 10};

inline size_t bytes_of(Type type) { return type == kFloat64 ? 8 : type == kFloat32 || type == kInt32 ? 4 : 2; }

// An input or an output of an op.
struct Tensor {
  Owned<TF_Tensor> tensor;

  Type type() const {
    const int* found = std::find(std::begin(kDataTypes), std::end(kDataTypes), TF_TensorType(tensor.get()));
    return static_cast<Type>(found - kDataTypes);  // kOther if it is none of them
  }
  int rank() const { return TF_NumDims(tensor.get()); }
  int64_t dim(int axis) const { return TF_Dim(tensor.get(), axis); }
  Dims dims() const {
    Dims result;
    for (int axis = 0; axis < rank(); ++axis) result.push_back(dim(axis));
    return result;
  }
  int64_t count() const {
    int64_t numbers = 1;
    for (int64_t n : dims()) numbers = times(numbers, n);
    return numbers;
  }
  Array array() const {
    Array result{type(), {}, data()};
    result.shape.rank = rank();
    for (int axis = 0; axis < rank() && axis < Shape::kMostAxes; ++axis) result.shape.dims[axis] = dim(axis);
    return result;
  }
  // ". Received: shape (2, 3)"
  std::string described() const { return ". Received: " + tf::described(dims()); }
  template <class T = void>
  T* data() const {
    return static_cast<T*>(TF_TensorData(tensor.get()));
  }
};

struct Status : Owned<TF_Status> {
  Status() : Owned<TF_Status>(TF_NewStatus()) {}
  bool ok() const { return TF_GetCode(get()) == 0; }
};

inline std::vector<Tensor> inputs_of(TF_OpKernelContext* context, const Status& status) {
  std::vector<Tensor> inputs(static_cast<size_t>(TF_NumInputs(context)));
  int i = 0;
  for (Tensor& input : inputs) {
    TF_Tensor* tensor = nullptr;
    TF_GetInput(context, i++, &tensor, status.get());
    input.tensor.reset(tensor);
    if (!status.ok()) fail("an input could not be read");
  }
  return inputs;
}

// Allocates an output. TensorFlow ends the process if an int64 cannot count the numbers.
inline Tensor allocated(TF_OpKernelContext* context, const Status& status, int index, Type type, const Dims& dims) {
  int64_t numbers = 1;
  for (int64_t n : dims)
    if (__builtin_mul_overflow(numbers, n, &numbers))
      fail("a result must have less than 2^63 numbers. Received: inputs that make its " + described(dims));
  const size_t bytes = static_cast<size_t>(numbers) * bytes_of(type);
  Tensor made{Owned<TF_Tensor>(TF_AllocateOutput(context, index, kDataTypes[type], dims.data(),
                                                 static_cast<int>(dims.size()), bytes, status.get()))};
  if (!status.ok() || !made.tensor) throw Failed{"out of memory for the result", true};
  return made;
}

// Passes on an error to TensorFlow.
template <class Function, class Context>
void guarded(Context* context, void (*refuse)(Context*, TF_Status*), const Function& function) {
  Failed failed;
  try {
    function();
    return;
  } catch (const Failed& f) {
    failed = f;
  } catch (...) {
    failed = {"out of memory", true};
  }
  const Status status;
  constexpr int kInvalidArgument = 3, kResourceExhausted = 8;  // TF_Code
  TF_SetStatus(status.get(), failed.lacks_memory ? kResourceExhausted : kInvalidArgument, failed.text.c_str());
  refuse(context, status.get());
}

// Runs the function of an op.
template <class Function>
void guarded(TF_OpKernelContext* context, const Function& function) {
  guarded(context, TF_OpKernelContext_Failure, function);
}

}  // namespace heed::tf
