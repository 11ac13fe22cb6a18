// Additive attention.
#include "call.h"
#include "ops.h"
#include "registration.h"

namespace heed::tf {
namespace {

void run_forward(void*, TF_OpKernelContext* context) {
  guarded(context, [&] {
    Call call(context, kNoHeads, 0);
    const Attention& a = call.attention;
    const std::vector<int64_t> dims{a.batch, a.queries, a.value_width};
    const Output output(call.allocate(context, 0, call.type(), dims));
    const Output lse(call.allocate(context, 1, call.compute_type(), {a.batch, a.queries}));
    const Output softmax(call.allocate(context, 2, call.compute_type(), {2, a.batch, a.queries}));
    const Forward results{call.rows_at(output.data(), dims), lse.data(), softmax.data()};
    if (const char* problem = heed_additive_forward(&call.additive, &results, call.threads())) fail(problem);
  });
}

// The extra inputs are output, softmax, output_gradient, lse_gradient.
void run_backward(void*, TF_OpKernelContext* context) {
  guarded(context, [&] {
    Call call(context, kNoHeads, 4);
    const Attention& a = call.attention;
    const std::vector<int64_t> output{a.batch, a.queries, a.value_width}, lse{a.batch, a.queries};
    auto make = [&](int i) { return call.allocate(context, i, call.type(), call.dims(i)); };
    auto make_vector = [&](int i) { return call.allocate(context, i, call.compute_type(), {a.width}); };
    const Output made[5] = {Output(make(0)), Output(make(1)), Output(make(2)), Output(make_vector(3)),
                            Output(make_vector(4))};
    auto extra = [&](int i, const char* name, const std::vector<int64_t>& dims) {
      return call.expect(kFirstExtra + i, name, dims).data();
    };
    const AdditiveBackward pass{
        {call.rows_at(extra(0, "output", output), output), extra(1, "softmax", {2, a.batch, a.queries}),
         call.rows_at(extra(2, "output_gradient", output), output), extra(3, "lse_gradient", lse),
         call.rows_at(made[0].data(), call.dims(0)), call.rows_at(made[1].data(), call.dims(1)),
         call.rows_at(made[2].data(), call.dims(2))},
        made[3].data(),
        made[4].data()};
    if (const char* problem = heed_additive_backward(&call.additive, &pass, call.threads())) fail(problem);
  });
}

void shape_forward(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeInferenceContextSetUnknownShape(context, status);
  const Tracing trace{context, status};
  Shape query, value, piece, output, lse;
  trace.input(0, 3, query);
  trace.input(2, 3, value);
  trace.part(query, 0, 2, output);
  trace.part(value, 2, 3, piece);
  trace.append(output, piece);
  trace.part(query, 0, 2, lse);
  trace.output(0, output);
  trace.output(1, lse);
}

void shape_backward(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeInferenceContextSetUnknownShape(context, status);
  const Tracing trace{context, status};
  Shape shape;
  for (int i : {2, 1, 0}) {
    trace.input(i, 3, shape);
    trace.output(i, shape);
  }
  Shape units;
  trace.part(shape, 2, 3, units);
  trace.output(3, units);
  trace.output(4, units);
}

}  // namespace

void register_additive() {
  register_op("HeedAdditive", shape_forward, run_forward, {}, {"result: T", "result_lse: C", "result_softmax: C"});
  register_op(
      "HeedAdditiveGradient", shape_backward, run_backward,
      {"output: T", "softmax: C", "output_gradient: T", "lse_gradient: C"},
      {"query_gradient: T", "key_gradient: T", "value_gradient: T", "score_vector_gradient: C", "bias_gradient: C"});
}

}  // namespace heed::tf
