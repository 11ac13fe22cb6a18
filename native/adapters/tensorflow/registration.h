// Registers ops: inputs and outputs, a shape function, and the function that runs them.
#pragma once

#include <cstdio>

#include "tensors.h"

namespace heed::tf {

// The context of a shape function. After a step fails, `status` holds the error and later steps do nothing.
struct Tracing {
  using Handle = Owned<TF_ShapeHandle>;
  TF_ShapeInferenceContext* context;
  TF_Status* status;

  Tracing(TF_ShapeInferenceContext* c, TF_Status* s) : context(c), status(s) {
    TF_ShapeInferenceContextSetUnknownShape(context, status);
  }
  bool ok() const { return TF_GetCode(status) == 0; }

  Handle input(int i) const {
    Handle shape(TF_NewShapeHandle());
    if (ok()) TF_ShapeInferenceContextGetInput(context, i, shape.get(), status);
    return shape;
  }
  Handle part(const Handle& of, int64_t begin, int64_t end) const {
    Handle shape(TF_NewShapeHandle());
    if (ok()) TF_ShapeInferenceContextSubshape(context, of.get(), begin, end, shape.get(), status);
    return shape;
  }
  Handle join(const Handle& first, const Handle& second) const {
    Handle shape(TF_NewShapeHandle());
    if (ok()) TF_ShapeInferenceContextConcatenateShapes(context, first.get(), second.get(), shape.get(), status);
    return shape;
  }
  void output(int i, const Handle& shape) const {
    if (ok()) TF_ShapeInferenceContextSetOutput(context, i, shape.get(), status);
  }
};

using Arguments = std::vector<const char*>;

// The types that T, the type of tensors, may be.
struct Types {
  const char* attribute;
  std::vector<Type> each;
};
// A function: ops are registered before the globals of this library exist.
inline Types floats() { return {"T: {float, double, bfloat16, half}", {kFloat32, kFloat64, kBfloat16, kFloat16}}; }

inline std::string read_string(TF_OpKernelConstruction* construction, const char* name) {
  const Status status;
  int32_t list_size = 0, size = 0;
  TF_OpKernelConstruction_GetAttrSize(construction, name, &list_size, &size, status.get());
  std::string text(static_cast<size_t>(std::max(size, 0)), '\0');
  if (status.ok()) TF_OpKernelConstruction_GetAttrString(construction, name, text.data(), text.size(), status.get());
  return text;
}

// 0: as many as there are.
template <class Number>
int thread_count(Number threads) {
  return threads >= 1 ? static_cast<int>(std::min(threads, Number{65536})) : 0;
}

// What an op keeps: a Form, read from its attribute `form`.
template <class Form>
void* create(TF_OpKernelConstruction* construction) {
  void* made = nullptr;
  guarded(construction, TF_OpKernelConstruction_Failure, [&] { made = new Form(read_string(construction, "form")); });
  return made;
}
template <class Form>
void destroy(void* form) {
  delete static_cast<Form*>(form);
}

// A form of doubles. src/heed/ops/backends/tensorflow/native/fused_ops.py has tuples of the same names and fields.
template <class Settings>
struct Numbers : Settings {
  explicit Numbers(const std::string& bytes) {
    Reader(bytes, "`form` must have as many numbers as the op lists").read(static_cast<Settings*>(this)).end();
  }
  int thread_count() const { return tf::thread_count(this->threads); }
};

// `attributes`: those that inputs and outputs name, but for T.
inline void register_op(const std::string& name, ShapeFunction shapes, Run run, const Arguments& attributes,
                        const Arguments& inputs, const Arguments& outputs, Create create = nullptr,
                        Destroy destroy = nullptr, const Types& types = floats()) {
  const Status status;
  TF_OpDefinitionBuilder* op = TF_NewOpDefinitionBuilder(name.c_str());
  if (types.attribute) TF_OpDefinitionBuilderAddAttr(op, types.attribute);
  for (const char* attribute : attributes) TF_OpDefinitionBuilderAddAttr(op, attribute);
  for (const char* input : inputs) TF_OpDefinitionBuilderAddInput(op, input);
  for (const char* output : outputs) TF_OpDefinitionBuilderAddOutput(op, output);
  TF_OpDefinitionBuilderSetShapeInferenceFunction(op, shapes);
  TF_RegisterOpDefinition(op, status.get());
  for (Type type : types.each) {
    TF_KernelBuilder* kernel = TF_NewKernelBuilder(name.c_str(), "CPU", create, run, destroy);
    if (types.attribute) TF_KernelBuilder_TypeConstraint(kernel, "T", kDataTypes[type], status.get());
    TF_RegisterKernelBuilder(name.c_str(), kernel, status.get());
  }
  if (!status.ok()) std::fprintf(stderr, "heed: TensorFlow did not take the op %s\n", name.c_str());
}

// An op whose form is these numbers.
template <class Settings>
void register_form(const char* name, ShapeFunction shapes, Run run, const Arguments& attributes,
                   const Arguments& inputs, const Arguments& outputs) {
  register_op(name, shapes, run, attributes, inputs, outputs, create<Numbers<Settings>>, destroy<Numbers<Settings>>);
}

// Outputs have the shapes of the first inputs.
template <int outputs>
void shapes_of_first(TF_ShapeInferenceContext* context, TF_Status* status) {
  const Tracing trace(context, status);
  for (int i = 0; i < outputs; ++i) trace.output(i, trace.input(i));
}

// The ops of row_ops.cc and of decode_ops.cc.
void register_row_ops();
void register_decode_ops();

}  // namespace heed::tf
