// Telling TensorFlow of an op: its inputs and outputs, their shapes, and its kernel for each type.
#pragma once

#include <vector>

#include "tensors.h"

namespace heed::tf {

// A shape while tracing, released at the end of the scope.
struct Shape {
  TF_ShapeHandle* handle = TF_NewShapeHandle();
  Shape() = default;
  Shape(const Shape&) = delete;
  ~Shape() { TF_DeleteShapeHandle(handle); }
};

struct Tracing {
  TF_ShapeInferenceContext* context;
  TF_Status* status;

  void input(int i, int64_t rank, const Shape& shape) const {
    TF_ShapeInferenceContextGetInput(context, i, shape.handle, status);
    if (TF_GetCode(status) == 0) TF_ShapeInferenceContextWithRank(context, shape.handle, rank, shape.handle, status);
  }
  void part(const Shape& of, int64_t begin, int64_t end, const Shape& result) const {
    if (TF_GetCode(status) == 0)
      TF_ShapeInferenceContextSubshape(context, of.handle, begin, end, result.handle, status);
  }
  void append(const Shape& to, const Shape& what) const {
    if (TF_GetCode(status) == 0)
      TF_ShapeInferenceContextConcatenateShapes(context, to.handle, what.handle, to.handle, status);
  }
  void output(int i, const Shape& shape) const {
    if (TF_GetCode(status) == 0) TF_ShapeInferenceContextSetOutput(context, i, shape.handle, status);
  }
};

using Arguments = std::vector<const char*>;

// `extra` inputs come after those that call.h lists up to `rules`. T is the type of query, key and value, C that of
// computation.
void register_op(const std::string& name, ShapeFunction shapes, Run run, const Arguments& extra,
                 const Arguments& outputs);

}  // namespace heed::tf
