// The ops of TensorFlow over the core: they read tensors, call it, and pass on what it says. No arithmetic.
//
// HeedAttention takes (B, T, N, H) tensors, HeedAttentionHeads (B, N, T, H), HeedAdditive (B, T, U). Each has one with
// Gradient at the end, the first two one with BiasGradient too.
#include "call.h"
#include "registration.h"

namespace heed::tf {
namespace {

void check(const char* problem) {
  if (problem) fail(problem);
}

template <const Layout& layout>
void run_forward(void*, TF_OpKernelContext* context) {
  guarded(context, [&] {
    Call call(context, layout, 0);
    const Dims dims = call.output_dims();
    const Output output(call.allocate(context, 0, call.type(), dims));
    const Output lse(call.allocate(context, 1, call.compute_type(), call.lse_dims()));
    const Output softmax(call.allocate(context, 2, call.compute_type(), call.softmax_dims()));
    const HeedForward results{call.tensor(output.data(), dims), lse.data(), softmax.data()};
    check(heed_forward(&call.attention, &results, call.threads()));
  });
}

// The extra inputs are output, softmax, output_gradient, lse_gradient: what the backward pass reads.
HeedBackward received(const Call& call) {
  auto extra = [&](int i, const char* name, const Dims& dims) {
    return call.expect(kFirstExtra + i, name, dims).data();
  };
  const Dims dims = call.output_dims();
  HeedBackward pass{};
  pass.output = call.tensor(extra(0, "output", dims), dims);
  pass.softmax = extra(1, "softmax", call.softmax_dims());
  pass.output_gradient = call.tensor(extra(2, "output_gradient", dims), dims);
  pass.lse_gradient = extra(3, "lse_gradient", call.lse_dims());
  return pass;
}

template <const Layout& layout>
void run_backward(void*, TF_OpKernelContext* context) {
  guarded(context, [&] {
    Call call(context, layout, 4);
    auto make = [&](int i) { return call.allocate(context, i, call.type(), call.dims(i)); };
    const Output made[3] = {Output(make(0)), Output(make(1)), Output(make(2))};
    std::vector<Output> vectors;
    for (int i = 3; layout.additive() && i < 5; ++i)
      vectors.emplace_back(call.allocate(context, i, call.compute_type(), {call.attention.head_dim}));
    HeedBackward pass = received(call);
    pass.query_gradient = call.tensor(made[0].data(), call.dims(0));
    pass.key_gradient = call.tensor(made[1].data(), call.dims(1));
    pass.value_gradient = call.tensor(made[2].data(), call.dims(2));
    if (layout.additive()) pass.score_vector_gradient = vectors[0].data(), pass.bias_gradient = vectors[1].data();
    check(heed_backward(&call.attention, &pass, call.threads()));
  });
}

template <const Layout& layout>
void run_bias_gradient(void*, TF_OpKernelContext* context) {
  guarded(context, [&] {
    Call call(context, layout, 4);
    if (!call.attention.bias.data) fail("there must be a `bias`");
    const int64_t* shape = call.attention.bias.shape;
    const Output made(call.allocate(context, 0, call.compute_type(), Dims(shape, shape + 4)));
    HeedBackward pass = received(call);
    pass.bias_gradient = made.data();
    check(heed_bias_gradient(&call.attention, &pass, call.threads()));
  });
}

template <const Layout& layout>
void shape_forward(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeInferenceContextSetUnknownShape(context, status);
  const Tracing trace{context, status};
  Shape query, value, piece, output, lse;
  trace.input(0, layout.rank, query);
  trace.input(2, layout.rank, value);
  trace.part(query, 0, layout.rank - 1, output);
  trace.part(value, layout.rank - 1, layout.rank, piece);
  trace.append(output, piece);
  trace.part(query, 0, 1, lse);
  for (int axis : {layout.heads_axis, layout.length_axis}) {
    if (axis < 0) continue;
    trace.part(query, axis, axis + 1, piece);
    trace.append(lse, piece);
  }
  trace.output(0, output);
  trace.output(1, lse);
}

template <const Layout& layout>
void shape_backward(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeInferenceContextSetUnknownShape(context, status);
  const Tracing trace{context, status};
  Shape shape, units;
  for (int i : {2, 1, 0}) {
    trace.input(i, layout.rank, shape);
    trace.output(i, shape);
  }
  if (!layout.additive()) return;
  trace.part(shape, 2, 3, units);
  trace.output(3, units);
  trace.output(4, units);
}

// The shape of the bias, which is one of a list.
void shape_bias_gradient(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeInferenceContextSetUnknownShape(context, status);
}

template <const Layout& layout>
void register_ops(const std::string& name) {
  const Arguments received{"output: T", "softmax: C", "output_gradient: T", "lse_gradient: C"};
  Arguments gradients{"query_gradient: T", "key_gradient: T", "value_gradient: T"};
  if (layout.additive()) gradients.insert(gradients.end(), {"score_vector_gradient: C", "bias_gradient: C"});
  register_op(name, shape_forward<layout>, run_forward<layout>, {},
              {"result: T", "result_lse: C", "result_softmax: C"});
  register_op(name + "Gradient", shape_backward<layout>, run_backward<layout>, received, gradients);
  if (!layout.additive())
    register_op(name + "BiasGradient", shape_bias_gradient, run_bias_gradient<layout>, received, {"bias_gradient: C"});
}

// Runs when the library is loaded: TensorFlow looks for ops that appeared meanwhile.
__attribute__((constructor)) void register_all() {
  if (!bind()) return;
  register_ops<kLengthFirst>("HeedAttention");
  register_ops<kHeadsFirst>("HeedAttentionHeads");
  register_ops<kNoHeads>("HeedAdditive");
}

}  // namespace
}  // namespace heed::tf
