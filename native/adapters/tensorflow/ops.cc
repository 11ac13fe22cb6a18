// The attention ops of TensorFlow: they read tensors, call the core, and pass on its errors. No arithmetic.
//
// HeedAttention, HeedAttentionGradient and HeedAttentionBiasGradient take the arrays of ../shared/call.h, in its order;
// the form is an attribute. Where that is empty, the last operand holds the form, as int64: TensorFlow keeps the kernel
// of an eager op for ever, one for each value of its attributes. row_ops.cc has the fused row-wise ops, decode_ops.cc
// those of decoding in a graph.
#include "../shared/call.h"
#include "registration.h"

namespace heed::tf {
namespace {

// Allocates outputs.
struct Allocator {
  TF_OpKernelContext* context;
  const Status& status;

  Array operator()(int index, Type type, const Shape& shape) const {
    return allocated(context, status, index, type, shape);
  }
};

using Pass = void (*)(const Call&, const Allocator&, int threads);

std::string_view read_form(const std::vector<Array>& arrays) {
  if (arrays.empty() || arrays.back().type != kInt64) fail("an attention must have a form");
  const Array& form = arrays.back();
  return {static_cast<const char*>(form.data), sizeof(int64_t) * static_cast<size_t>(form.shape.count())};
}

void* create_form(TF_OpKernelConstruction* construction) {
  return read_string(construction, "form").empty() ? nullptr : create<Form>(construction);
}

template <Pass pass, size_t extra>
void run(void* form, TF_OpKernelContext* context) {
  guarded(context, [&] {
    const Status status;
    std::vector<Array> arrays(static_cast<size_t>(TF_NumInputs(context)));
    int i = 0;
    for (Array& x : arrays) x = input_of(context, status, i++);  // the context holds them as long as the op runs
    const Form& of = form ? *static_cast<const Form*>(form) : form_of(read_form(arrays));
    const Call call(of, arrays.data(), arrays.size(), extra);
    pass(call, Allocator{context, status}, thread_count(of.header.threads));
  });
}

// (..., H) and (..., V) to (..., V). The layout decides on the shape of the log-sum-exp, and no shape function sees it.
void shape_forward(TF_ShapeInferenceContext* context, TF_Status* status) {
  const Tracing trace(context, status);
  const auto width = trace.part(trace.input(2), -1, INT64_MAX);
  trace.output(0, trace.join(trace.part(trace.input(0), 0, -1), width));
}

// T is the type of query, key and value, C that of computation.
template <Pass pass, size_t extra>
void register_attention(const char* name, ShapeFunction shapes, Arguments attributes, const Arguments& outputs) {
  Arguments inputs{"query: T", "key: T", "value: T"};
  if (extra) inputs.insert(inputs.end(), {"output: T", "softmax: C", "output_gradient: T", "lse_gradient: C"});
  inputs.push_back("operands: O");
  attributes.insert(attributes.end(), {"C: {float, double} = DT_FLOAT", "form: string",
                                       "O: list({float, double, int32, int64, uint32, bool}) >= 0"});
  register_op(name, shapes, run<pass, extra>, attributes, inputs, outputs, create_form, destroy<Form>);
}

// Runs when the library is loaded, so that TensorFlow finds the new ops.
__attribute__((constructor)) void register_all() {
  if (!bind()) return;
  register_attention<run_forward, kNoExtra>("HeedAttention", shape_forward, {},
                                            {"result: T", "result_lse: C", "result_softmax: C"});
  register_attention<run_backward, kOfForward>(
      "HeedAttentionGradient", shapes_of_first<3>, {"G: int >= 0"},
      {"query_gradient: T", "key_gradient: T", "value_gradient: T", "operand_gradients: G * C"});
  register_attention<run_bias_gradient, kOfForward>("HeedAttentionBiasGradient",
                                                    TF_ShapeInferenceContextSetUnknownShape, {}, {"bias_gradient: C"});
  register_row_ops();
  register_decode_ops();
}

}  // namespace
}  // namespace heed::tf
