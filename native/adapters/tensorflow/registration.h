// Registers ops: inputs and outputs, a shape function, and the function that runs them.
#pragma once

#include <cstdio>

#include "tensors.h"

namespace heed::tf {

// The context of a shape function. After a step fails, `status` holds the error and later steps do nothing.
struct Tracing {
  using Shape = Owned<TF_ShapeHandle>;
  TF_ShapeInferenceContext* context;
  TF_Status* status;

  Tracing(TF_ShapeInferenceContext* c, TF_Status* s) : context(c), status(s) {
    TF_ShapeInferenceContextSetUnknownShape(context, status);
  }
  bool ok() const { return TF_GetCode(status) == 0; }

  Shape input(int i) const {
    Shape shape(TF_NewShapeHandle());
    if (ok()) TF_ShapeInferenceContextGetInput(context, i, shape.get(), status);
    return shape;
  }
  Shape input(int i, int64_t rank) const {
    Shape shape = input(i);
    if (ok()) TF_ShapeInferenceContextWithRank(context, shape.get(), rank, shape.get(), status);
    return shape;
  }
  Shape part(const Shape& of, int64_t begin, int64_t end) const {
    Shape shape(TF_NewShapeHandle());
    if (ok()) TF_ShapeInferenceContextSubshape(context, of.get(), begin, end, shape.get(), status);
    return shape;
  }
  Shape join(const Shape& first, const Shape& second) const {
    Shape shape(TF_NewShapeHandle());
    if (ok()) TF_ShapeInferenceContextConcatenateShapes(context, first.get(), second.get(), shape.get(), status);
    return shape;
  }
  void output(int i, const Shape& shape) const {
    if (ok()) TF_ShapeInferenceContextSetOutput(context, i, shape.get(), status);
  }
};

using Arguments = std::vector<const char*>;

// C, the compute type.
inline constexpr const char* kComputeType = "C: {float, double}";

// The types that T, the type of tensors, may be.
struct Types {
  const char* attribute;
  std::vector<int> numbers;
};
// A function: ops are registered before the globals of this library exist.
inline Types floats() { return {"T: {float, double, bfloat16, half}", {kFloat, kDouble, kBfloat16, kHalf}}; }

// `attributes`: those that inputs and outputs name, but for T.
inline void register_op(const std::string& name, ShapeFunction shapes, Run run, const Arguments& attributes,
                        const Arguments& inputs, const Arguments& outputs, const Types& types = floats()) {
  const Status status;
  TF_OpDefinitionBuilder* op = TF_NewOpDefinitionBuilder(name.c_str());
  TF_OpDefinitionBuilderAddAttr(op, types.attribute);
  for (const char* attribute : attributes) TF_OpDefinitionBuilderAddAttr(op, attribute);
  for (const char* input : inputs) TF_OpDefinitionBuilderAddInput(op, input);
  for (const char* output : outputs) TF_OpDefinitionBuilderAddOutput(op, output);
  TF_OpDefinitionBuilderSetShapeInferenceFunction(op, shapes);
  TF_RegisterOpDefinition(op, status.get());
  for (int type : types.numbers) {
    TF_KernelBuilder* kernel = TF_NewKernelBuilder(
        name.c_str(), "CPU", [](TF_OpKernelConstruction*) -> void* { return nullptr; }, run, [](void*) {});
    TF_KernelBuilder_TypeConstraint(kernel, "T", type, status.get());
    TF_RegisterKernelBuilder(name.c_str(), kernel, status.get());
  }
  if (!status.ok()) std::fprintf(stderr, "heed: TensorFlow did not take the op %s\n", name.c_str());
}

// The ops of row_ops.cc and of decode_ops.cc.
void register_row_ops();
void register_decode_ops();

}  // namespace heed::tf
