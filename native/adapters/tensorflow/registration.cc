#include "registration.h"

#include <cstdio>

namespace heed::tf {

void register_op(const std::string& name, ShapeFunction shapes, Run run, const Arguments& extra,
                 const Arguments& outputs) {
  Status status;
  TF_OpDefinitionBuilder* op = TF_NewOpDefinitionBuilder(name.c_str());
  for (const char* attribute :
       {"T: {float, double, bfloat16, half}", "C: {float, double}", "F: int >= 1", "M: int >= 0", "D: int >= 0"})
    TF_OpDefinitionBuilderAddAttr(op, attribute);
  for (const char* input : {"query: T", "key: T", "value: T", "settings: double", "seed: uint32", "rules: int64"})
    TF_OpDefinitionBuilderAddInput(op, input);
  for (const char* input : extra) TF_OpDefinitionBuilderAddInput(op, input);
  for (const char* input : {"reals: F * C", "numbers: M * int32", "arrays: D * bool"})
    TF_OpDefinitionBuilderAddInput(op, input);
  for (const char* output : outputs) TF_OpDefinitionBuilderAddOutput(op, output);
  TF_OpDefinitionBuilderSetShapeInferenceFunction(op, shapes);
  TF_RegisterOpDefinition(op, status.status);
  for (int type : {kFloat, kDouble, kBfloat16, kHalf}) {
    TF_KernelBuilder* kernel = TF_NewKernelBuilder(
        name.c_str(), "CPU", [](TF_OpKernelConstruction*) -> void* { return nullptr; }, run, [](void*) {});
    TF_KernelBuilder_TypeConstraint(kernel, "T", type, status.status);
    TF_RegisterKernelBuilder(name.c_str(), kernel, status.status);
  }
  if (!status.ok()) std::fprintf(stderr, "heed: TensorFlow did not take the op %s\n", name.c_str());
}

}  // namespace heed::tf
