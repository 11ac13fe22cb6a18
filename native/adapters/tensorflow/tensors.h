// Tensors and errors of TensorFlow's C API, released when they go out of scope.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "../../include/heed.h"
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
  bool has_dims(std::initializer_list<int64_t> dims) const {
    if (rank() != static_cast<int>(dims.size())) return false;
    int axis = 0;
    for (int64_t n : dims)
      if (dim(axis++) != n) return false;
    return true;
  }
  std::vector<int64_t> dims() const {
    std::vector<int64_t> result;
    for (int axis = 0; axis < rank(); ++axis) result.push_back(dim(axis));
    return result;
  }
  // ". Received: shape (2, 3)"
  std::string described() const {
    std::string text = ". Received: shape (";
    for (int axis = 0; axis < rank(); ++axis) text += (axis ? ", " : "") + std::to_string(dim(axis));
    return text + ")";
  }
  template <class T = void>
  T* data() const {
    return static_cast<T*>(TF_TensorData(tensor));
  }
};

struct Output {
  TF_Tensor* tensor;
  explicit Output(TF_Tensor* t) : tensor(t) {}
  Output(Output&& other) noexcept : tensor(other.tensor) { other.tensor = nullptr; }
  Output(const Output&) = delete;
  ~Output() {
    if (tensor) TF_DeleteTensor(tensor);
  }
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

inline int32_t dtype_of(int type) {
  switch (type) {
    case kDouble: return HEED_FLOAT64;
    case kBfloat16: return HEED_BFLOAT16;
    case kHalf: return HEED_FLOAT16;
    default: return HEED_FLOAT32;
  }
}

inline size_t bytes_of(int type) { return type == kDouble ? 8 : type == kFloat ? 4 : 2; }

}  // namespace heed::tf
