// The attention ops of TensorFlow: they read tensors, call the core, and pass on its errors. No arithmetic.
//
// HeedAttention takes (B, T, N, H) tensors, HeedAttentionHeads (B, N, T, H), HeedAdditive (B, T, U). Each has a
// ...Gradient op, the first two a ...BiasGradient op. row_ops.cc has the fused row-wise ops, decode_ops.cc those of
// decoding in a graph.
#include "call.h"
#include "registration.h"

namespace heed::tf {
namespace {

template <const Layout& layout>
void run_forward(void*, TF_OpKernelContext* context) {
  guarded(context, [&] {
    Call call(context, layout, 0);
    const Tensor output = call.allocate(0, call.type(), call.output_dims());
    const Tensor lse = call.allocate(1, call.compute_type(), call.lse_dims());
    const Tensor softmax = call.allocate(2, call.compute_type(), call.softmax_dims());
    const HeedForward results{call.rows(output), lse.data(), softmax.data()};
    check(heed_forward(&call.attention, &results, call.threads()));
  });
}

// The extra inputs of the backward pass: output, softmax, output_gradient, lse_gradient.
HeedBackward read_backward(const Call& call) {
  const Dims dims = call.output_dims();
  HeedBackward pass{};
  pass.output = call.rows(call.expect(kFirstExtra, "output", dims));
  pass.softmax = call.expect(kFirstExtra + 1, "softmax", call.softmax_dims()).data();
  pass.output_gradient = call.rows(call.expect(kFirstExtra + 2, "output_gradient", dims));
  pass.lse_gradient = call.expect(kFirstExtra + 3, "lse_gradient", call.lse_dims()).data();
  return pass;
}

template <const Layout& layout>
void run_backward(void*, TF_OpKernelContext* context) {
  guarded(context, [&] {
    Call call(context, layout, 4);
    std::vector<Tensor> made;
    made.reserve(5);
    for (int i = 0; i < 3; ++i) made.push_back(call.allocate(i, call.type(), call.input(i).dims()));
    for (int i = 3; layout.additive() && i < 5; ++i)
      made.push_back(call.allocate(i, call.compute_type(), {call.attention.head_dim}));
    HeedBackward pass = read_backward(call);
    pass.query_gradient = call.rows(made[0]);
    pass.key_gradient = call.rows(made[1]);
    pass.value_gradient = call.rows(made[2]);
    if (layout.additive()) pass.score_vector_gradient = made[3].data(), pass.bias_gradient = made[4].data();
    check(heed_backward(&call.attention, &pass, call.threads()));
  });
}

template <const Layout& layout>
void run_bias_gradient(void*, TF_OpKernelContext* context) {
  guarded(context, [&] {
    Call call(context, layout, 4);
    if (!call.attention.bias.data) fail("there must be a `bias`");
    const int64_t* shape = call.attention.bias.shape;
    const Tensor made = call.allocate(0, call.compute_type(), Dims(shape, shape + 4));
    HeedBackward pass = read_backward(call);
    pass.bias_gradient = made.data();
    check(heed_bias_gradient(&call.attention, &pass, call.threads()));
  });
}

template <const Layout& layout>
void shape_forward(TF_ShapeInferenceContext* context, TF_Status* status) {
  const Tracing trace(context, status);
  const auto query = trace.input(0, layout.rank), value = trace.input(2, layout.rank);
  const int last = layout.rank - 1;
  trace.output(0, trace.join(trace.part(query, 0, last), trace.part(value, last, layout.rank)));
  auto lse = trace.part(query, 0, 1);
  if (!layout.additive()) lse = trace.join(lse, trace.part(query, layout.heads_axis, layout.heads_axis + 1));
  trace.output(1, trace.join(lse, trace.part(query, layout.length_axis, layout.length_axis + 1)));
}

template <const Layout& layout>
void shape_backward(TF_ShapeInferenceContext* context, TF_Status* status) {
  const Tracing trace(context, status);
  for (int i = 0; i < 3; ++i) trace.output(i, trace.input(i, layout.rank));
  for (int i = 3; layout.additive() && i < 5; ++i) trace.output(i, trace.part(trace.input(0, layout.rank), 2, 3));
}

// `extra` inputs follow `settings`, see call.h. T is the type of query, key and value, C that of computation.
void register_attention(const std::string& name, ShapeFunction shapes, Run run, const Arguments& extra,
                        const Arguments& outputs) {
  Arguments inputs{"query: T", "key: T", "value: T", "settings: double"};
  inputs.insert(inputs.end(), extra.begin(), extra.end());
  inputs.insert(inputs.end(),
                {"reals: F * C", "numbers: M * int32", "arrays: D * bool", "rules: R * int64", "seeds: S * uint32"});
  const Arguments lengths{"F: int >= 0", "M: int >= 0", "D: int >= 0", "R: int >= 0", "S: int >= 0"};
  Arguments attributes{"C: {float, double} = DT_FLOAT"};  // the default of graphs, if there are no reals
  attributes.insert(attributes.end(), lengths.begin(), lengths.end());
  register_op(name, shapes, run, attributes, inputs, outputs);
}

template <const Layout& layout>
void register_ops(const std::string& name) {
  const Arguments of_forward{"output: T", "softmax: C", "output_gradient: T", "lse_gradient: C"};
  Arguments gradients{"query_gradient: T", "key_gradient: T", "value_gradient: T"};
  if (layout.additive()) gradients.insert(gradients.end(), {"score_vector_gradient: C", "bias_gradient: C"});
  register_attention(name, shape_forward<layout>, run_forward<layout>, {},
                     {"result: T", "result_lse: C", "result_softmax: C"});
  register_attention(name + "Gradient", shape_backward<layout>, run_backward<layout>, of_forward, gradients);
  if (!layout.additive())
    register_attention(name + "BiasGradient", TF_ShapeInferenceContextSetUnknownShape, run_bias_gradient<layout>,
                       of_forward, {"bias_gradient: C"});
}

// Runs when the library is loaded, so that TensorFlow finds the new ops.
__attribute__((constructor)) void register_all() {
  if (!bind()) return;
  register_ops<kLengthFirst>("HeedAttention");
  register_ops<kHeadsFirst>("HeedAttentionHeads");
  register_ops<kNoHeads>("HeedAdditive");
  register_row_ops();
  register_decode_ops();
}

}  // namespace
}  // namespace heed::tf
