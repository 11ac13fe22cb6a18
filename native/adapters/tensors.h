// Tensors and errors of TensorFlow's C API, released when they go out of scope.
#pragma once

#include <string>

#include "../attention.h"
#include "tensorflow_c.h"

namespace heed::tf {

struct Input {
  TF_Tensor* tensor = nullptr;
  Input() = default;
  Input(Input&& other) noexcept : tensor(other.tensor) { other.tensor = nullptr; }
  Input(const Input&) = delete;
  ~Input() {
    if (tensor) TF_DeleteTensor(tensor);
  }
  int rank() const { return TF_NumDims(tensor); }
  int64_t dim(int axis) const { return TF_Dim(tensor, axis); }
  template <class T = void>
  T* data() const {
    return static_cast<T*>(TF_TensorData(tensor));
  }
};

struct Output {
  TF_Tensor* tensor;
  explicit Output(TF_Tensor* t) : tensor(t) {}
  Output(const Output&) = delete;
  ~Output() { TF_DeleteTensor(tensor); }
  void* data() const { return TF_TensorData(tensor); }
};

struct Status {
  TF_Status* status = TF_NewStatus();
  Status() = default;
  Status(const Status&) = delete;
  ~Status() { TF_DeleteStatus(status); }
  bool ok() const { return TF_GetCode(status) == 0; }
};

struct Failed {
  std::string text;
  int code = kInvalidArgument;
};

[[noreturn]] inline void fail(const std::string& text) { throw Failed{text}; }

// Runs an op's function and tells TensorFlow of what it threw.
template <class Function>
void guarded(TF_OpKernelContext* context, const Function& function) {
  Failed failed{"", 0};
  try {
    function();
    return;
  } catch (const Failed& f) {
    failed = f;
  } catch (...) {
    failed = {"out of memory", kResourceExhausted};
  }
  Status status;
  TF_SetStatus(status.status, failed.code, failed.text.c_str());
  TF_OpKernelContext_Failure(context, status.status);
}

inline Number number_of(int type) {
  switch (type) {
    case kDouble: return Number::kFloat64;
    case kBfloat16: return Number::kBfloat16;
    case kHalf: return Number::kFloat16;
    default: return Number::kFloat32;
  }
}

inline size_t bytes_of(int type) { return type == kDouble ? 8 : type == kFloat ? 4 : 2; }

}  // namespace heed::tf
