// TensorFlow's stable C API, bound by name at load time: no headers of TensorFlow, no link against it, so one library
// serves every version. Signatures are those of tensorflow/c/{tf_status,tf_tensor,ops,kernels}.h.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>

struct TF_Status;
struct TF_Tensor;
struct TF_OpDefinitionBuilder;
struct TF_ShapeInferenceContext;
struct TF_ShapeHandle;
struct TF_KernelBuilder;
struct TF_OpKernelConstruction;
struct TF_OpKernelContext;

namespace heed::tf {

using ShapeFunction = void (*)(TF_ShapeInferenceContext*, TF_Status*);
using Create = void* (*)(TF_OpKernelConstruction*);
using Run = void (*)(void*, TF_OpKernelContext*);
using Destroy = void (*)(void*);

// name, result, arguments
#define HEED_TF_FUNCTIONS(F)                                                                                        \
  F(TF_NewStatus, TF_Status*, ())                                                                                   \
  F(TF_DeleteStatus, void, (TF_Status*))                                                                            \
  F(TF_SetStatus, void, (TF_Status*, int, const char*))                                                             \
  F(TF_GetCode, int, (const TF_Status*))                                                                            \
  F(TF_TensorType, int, (const TF_Tensor*))                                                                         \
  F(TF_NumDims, int, (const TF_Tensor*))                                                                            \
  F(TF_Dim, int64_t, (const TF_Tensor*, int))                                                                       \
  F(TF_TensorData, void*, (const TF_Tensor*))                                                                       \
  F(TF_DeleteTensor, void, (TF_Tensor*))                                                                            \
  F(TF_NewOpDefinitionBuilder, TF_OpDefinitionBuilder*, (const char*))                                              \
  F(TF_OpDefinitionBuilderAddAttr, void, (TF_OpDefinitionBuilder*, const char*))                                    \
  F(TF_OpDefinitionBuilderAddInput, void, (TF_OpDefinitionBuilder*, const char*))                                   \
  F(TF_OpDefinitionBuilderAddOutput, void, (TF_OpDefinitionBuilder*, const char*))                                  \
  F(TF_OpDefinitionBuilderSetShapeInferenceFunction, void, (TF_OpDefinitionBuilder*, ShapeFunction))                \
  F(TF_RegisterOpDefinition, void, (TF_OpDefinitionBuilder*, TF_Status*))                                           \
  F(TF_NewShapeHandle, TF_ShapeHandle*, ())                                                                         \
  F(TF_DeleteShapeHandle, void, (TF_ShapeHandle*))                                                                  \
  F(TF_ShapeInferenceContextGetInput, void, (TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))          \
  F(TF_ShapeInferenceContextSetOutput, void, (TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))         \
  F(TF_ShapeInferenceContextSetUnknownShape, void, (TF_ShapeInferenceContext*, TF_Status*))                         \
  F(TF_ShapeInferenceContextSubshape, void,                                                                         \
    (TF_ShapeInferenceContext*, TF_ShapeHandle*, int64_t, int64_t, TF_ShapeHandle*, TF_Status*))                    \
  F(TF_ShapeInferenceContextConcatenateShapes, void,                                                                \
    (TF_ShapeInferenceContext*, TF_ShapeHandle*, TF_ShapeHandle*, TF_ShapeHandle*, TF_Status*))                     \
  F(TF_NewKernelBuilder, TF_KernelBuilder*, (const char*, const char*, Create, Run, Destroy))                       \
  F(TF_KernelBuilder_TypeConstraint, void, (TF_KernelBuilder*, const char*, int, TF_Status*))                       \
  F(TF_RegisterKernelBuilder, void, (const char*, TF_KernelBuilder*, TF_Status*))                                   \
  F(TF_OpKernelConstruction_GetAttrSize, void,                                                                      \
    (TF_OpKernelConstruction*, const char*, std::int32_t*, std::int32_t*, TF_Status*))                              \
  F(TF_OpKernelConstruction_GetAttrString, void,                                                                    \
    (TF_OpKernelConstruction*, const char*, char*, std::size_t, TF_Status*))                                        \
  F(TF_OpKernelConstruction_GetAttrInt32, void, (TF_OpKernelConstruction*, const char*, std::int32_t*, TF_Status*)) \
  F(TF_OpKernelConstruction_GetAttrBool, void, (TF_OpKernelConstruction*, const char*, unsigned char*, TF_Status*)) \
  F(TF_OpKernelConstruction_Failure, void, (TF_OpKernelConstruction*, TF_Status*))                                  \
  F(TF_NumInputs, int, (TF_OpKernelContext*))                                                                       \
  F(TF_GetInput, void, (TF_OpKernelContext*, int, TF_Tensor**, TF_Status*))                                         \
  F(TF_AllocateOutput, TF_Tensor*, (TF_OpKernelContext*, int, int, const int64_t*, int, size_t, TF_Status*))        \
  F(TF_ForwardInputOrAllocateOutput, TF_Tensor*,                                                                    \
    (TF_OpKernelContext*, const int*, int, int, const int64_t*, int, int*, TF_Status*))                             \
  F(TF_OpKernelContext_Failure, void, (TF_OpKernelContext*, TF_Status*))

#define HEED_DECLARE(name, result, arguments) inline result(*name) arguments = nullptr;
HEED_TF_FUNCTIONS(HEED_DECLARE)
#undef HEED_DECLARE

// Finds all of them in the TensorFlow that this process has loaded; false if there is none.
inline bool bind() {
#if defined(__APPLE__)
  const char* const file = "libtensorflow_framework.2.dylib";
#else
  const char* const file = "libtensorflow_framework.so.2";
#endif
  void* library = dlopen(file, RTLD_NOW | RTLD_NOLOAD);
  if (!library) return false;
  bool all = true;
  auto find = [&](auto* function, const char* name) {
    *reinterpret_cast<void**>(function) = dlsym(library, name);
    if (!*function) *reinterpret_cast<void**>(function) = dlsym(RTLD_DEFAULT, name);
    all = all && *function;
  };
#define HEED_FIND(name, result, arguments) find(&name, #name);
  HEED_TF_FUNCTIONS(HEED_FIND)
#undef HEED_FIND
  return all;
}

}  // namespace heed::tf
