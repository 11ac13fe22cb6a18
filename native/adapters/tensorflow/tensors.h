// Tensors and errors of TensorFlow's C API, which release themselves.
#pragma once

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

// The TF_DataType of each Type but the last.
inline constexpr int kDataTypes[] = {1, 2, 14, 19, 3, 9, 22, 10};

inline size_t bytes_of(Type type) { return type == kFloat64 ? 8 : type == kFloat32 || type == kInt32 ? 4 : 2; }

// An input or an output of an op.
struct Tensor : Array {
  Owned<TF_Tensor> tensor;

  Tensor() = default;
  explicit Tensor(TF_Tensor* of) : tensor(of) {
    type = type_of(kDataTypes, TF_TensorType(of));
    shape = Shape::of_rank(TF_NumDims(of));
    for (int axis = 0; axis < shape.rank(); ++axis) shape[axis] = TF_Dim(of, axis);
    data = TF_TensorData(of);
  }
  Tensor(TF_Tensor* of, Type type, const Shape& shape) : Array{type, shape, TF_TensorData(of)}, tensor(of) {}
};

struct Status : Owned<TF_Status> {
  Status() : Owned<TF_Status>(TF_NewStatus()) {}
  bool ok() const { return TF_GetCode(get()) == 0; }
};

inline Tensor input_of(TF_OpKernelContext* context, const Status& status, int i) {
  TF_Tensor* tensor = nullptr;
  TF_GetInput(context, i, &tensor, status.get());
  if (!status.ok()) fail("an input could not be read");
  return Tensor(tensor);
}

inline std::vector<Tensor> inputs_of(TF_OpKernelContext* context, const Status& status) {
  std::vector<Tensor> inputs(static_cast<size_t>(TF_NumInputs(context)));
  for (size_t i = 0; i < inputs.size(); ++i) inputs[i] = input_of(context, status, static_cast<int>(i));
  return inputs;
}

inline TF_Tensor* result_of(const Status& status, TF_Tensor* tensor) {
  if (!status.ok() || !tensor) throw Failed{"out of memory for the result", true};
  return tensor;
}

// Allocates an output. TensorFlow ends the process if an int64 cannot count the numbers.
inline Tensor allocated(TF_OpKernelContext* context, const Status& status, int index, Type type, const Shape& shape) {
  int64_t numbers = 1;
  for (int64_t n : shape)
    if (__builtin_mul_overflow(numbers, n, &numbers))
      fail("a result must have less than 2^63 numbers. Received: inputs that make its " + shape.text());
  const size_t bytes = static_cast<size_t>(numbers) * bytes_of(type);
  TF_Tensor* made = TF_AllocateOutput(context, index, kDataTypes[type], shape.begin(), static_cast<int>(shape.rank()),
                                      bytes, status.get());
  return {result_of(status, made), type, shape};
}

// A result in the memory of the input `over` if no one else uses it, and whether it is. The caller must not hold that
// input.
inline std::pair<Tensor, bool> allocated_over(TF_OpKernelContext* context, const Status& status, int over, int index,
                                              const Shape& shape) {
  int taken = -1;
  Tensor made(result_of(status, TF_ForwardInputOrAllocateOutput(context, &over, 1, index, shape.begin(),
                                                                static_cast<int>(shape.rank()), &taken, status.get())));
  return {std::move(made), taken == over};
}

// Passes on an error to TensorFlow.
template <class Function, class Context>
void guarded(Context* context, void (*refuse)(Context*, TF_Status*), const Function& function) {
  const auto failed = failure_of(function);
  if (!failed) return;
  const Status status;
  constexpr int kInvalidArgument = 3, kResourceExhausted = 8;  // TF_Code
  TF_SetStatus(status.get(), failed->lacks_memory ? kResourceExhausted : kInvalidArgument, failed->text.c_str());
  refuse(context, status.get());
}

// Runs the function of an op.
template <class Function>
void guarded(TF_OpKernelContext* context, const Function& function) {
  guarded(context, TF_OpKernelContext_Failure, function);
}

}  // namespace heed::tf
