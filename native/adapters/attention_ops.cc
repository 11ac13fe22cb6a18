// Dot-product attention.
#include "call.h"
#include "ops.h"
#include "registration.h"

namespace heed::tf {
namespace {

template <const Layout& layout>
void run_forward(void*, TF_OpKernelContext* context) {
  guarded(context, [&] {
    Call call(context, layout, 0);
    const Attention& a = call.attention;
    const std::vector<int64_t> dims{a.batch, call[0].dim(1), call[0].dim(2), a.value_width};
    const Output output(call.allocate(context, 0, call.type(), dims));
    const Output lse(call.allocate(context, 1, call.compute_type(), {a.batch, a.heads, a.queries}));
    const Output softmax(call.allocate(context, 2, call.compute_type(), {2, a.batch, a.heads, a.queries}));
    const Forward results{call.rows_at(output.data(), dims), lse.data(), softmax.data()};
    if (const char* problem = heed_forward(&a, &results, call.threads())) fail(problem);
  });
}

// The extra inputs are output, softmax, output_gradient, lse_gradient: what the backward pass reads.
Backward received(const Call& call) {
  const Attention& a = call.attention;
  const std::vector<int64_t> output{a.batch, call[0].dim(1), call[0].dim(2), a.value_width};
  const std::vector<int64_t> lse{a.batch, a.heads, a.queries};
  auto extra = [&](int i, const char* name, const std::vector<int64_t>& dims) {
    return call.expect(kFirstExtra + i, name, dims).data();
  };
  Backward pass{};
  pass.output = call.rows_at(extra(0, "output", output), output);
  pass.softmax = extra(1, "softmax", {2, a.batch, a.heads, a.queries});
  pass.output_gradient = call.rows_at(extra(2, "output_gradient", output), output);
  pass.lse_gradient = extra(3, "lse_gradient", lse);
  return pass;
}

template <const Layout& layout>
void run_backward(void*, TF_OpKernelContext* context) {
  guarded(context, [&] {
    Call call(context, layout, 4);
    auto make = [&](int i) { return call.allocate(context, i, call.type(), call.dims(i)); };
    const Output made[3] = {Output(make(0)), Output(make(1)), Output(make(2))};
    Backward pass = received(call);
    pass.query_gradient = call.rows_at(made[0].data(), call.dims(0));
    pass.key_gradient = call.rows_at(made[1].data(), call.dims(1));
    pass.value_gradient = call.rows_at(made[2].data(), call.dims(2));
    if (const char* problem = heed_backward(&call.attention, &pass, call.threads())) fail(problem);
  });
}

template <const Layout& layout>
void run_bias_gradient(void*, TF_OpKernelContext* context) {
  guarded(context, [&] {
    Call call(context, layout, 4);
    const Attention& a = call.attention;
    if (!a.bias.data) fail("there must be a `bias`");
    const int64_t full[4] = {a.batch, a.heads, a.queries, a.keys};
    std::vector<int64_t> dims;
    for (int axis = 0; axis < 4; ++axis) dims.push_back(a.bias.stride[axis] ? full[axis] : 1);
    const Output made(call.allocate(context, 0, call.compute_type(), dims));
    const Backward pass = received(call);
    if (const char* problem = heed_bias_gradient(&a, &pass, made.data(), call.threads())) fail(problem);
  });
}

template <const Layout& layout>
void shape_forward(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeInferenceContextSetUnknownShape(context, status);
  const Tracing trace{context, status};
  Shape query, value, piece, output, lse;
  trace.input(0, 4, query);
  trace.input(2, 4, value);
  trace.part(query, 0, 3, output);
  trace.part(value, 3, 4, piece);
  trace.append(output, piece);
  trace.part(query, 0, 1, lse);
  for (int axis : {layout.heads_axis, layout.length_axis}) {
    trace.part(query, axis, axis + 1, piece);
    trace.append(lse, piece);
  }
  trace.output(0, output);
  trace.output(1, lse);
}

void shape_backward(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeInferenceContextSetUnknownShape(context, status);
  const Tracing trace{context, status};
  for (int i = 0; i < 3; ++i) {
    Shape shape;
    trace.input(i, 4, shape);
    trace.output(i, shape);
  }
}

// The shape of the bias, which is one of a list.
void shape_bias_gradient(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeInferenceContextSetUnknownShape(context, status);
}

}  // namespace

void register_attention() {
  const Arguments results{"result: T", "result_lse: C", "result_softmax: C"};
  const Arguments extra{"output: T", "softmax: C", "output_gradient: T", "lse_gradient: C"};
  const Arguments gradients{"query_gradient: T", "key_gradient: T", "value_gradient: T"};
  register_op("HeedAttention", shape_forward<kLengthFirst>, run_forward<kLengthFirst>, {}, results);
  register_op("HeedAttentionHeads", shape_forward<kHeadsFirst>, run_forward<kHeadsFirst>, {}, results);
  register_op("HeedAttentionGradient", shape_backward, run_backward<kLengthFirst>, extra, gradients);
  register_op("HeedAttentionHeadsGradient", shape_backward, run_backward<kHeadsFirst>, extra, gradients);
  register_op("HeedAttentionBiasGradient", shape_bias_gradient, run_bias_gradient<kLengthFirst>, extra,
              {"bias_gradient: C"});
  register_op("HeedAttentionHeadsBiasGradient", shape_bias_gradient, run_bias_gradient<kHeadsFirst>, extra,
              {"bias_gradient: C"});
}

}  // namespace heed::tf
