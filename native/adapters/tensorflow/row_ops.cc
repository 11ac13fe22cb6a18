// The fused row-wise ops of TensorFlow. No arithmetic.
//
// Tensors are of the type T; some ops also take numbers and vectors of the compute type C. The form is an attribute.
#include "registration.h"

namespace heed::tf {
namespace {

// Forms. Flags are 0 or 1.
struct CrossEntropySettings {
  double threads, ignored;
};
struct NormalizationSettings {
  double threads, epsilon, rms;
};
struct DropoutSettings {
  double threads, rate;
};

// A call of an op on rows: the last axis of the first input is a row.
template <class Settings>
class RowCall {
 public:
  RowCall(void* form, TF_OpKernelContext* context)
      : settings(*static_cast<const Numbers<Settings>*>(form)), context_(context) {
    first_ = input(0);  // which it does not hold
    if (first_.shape.rank() == 0) fail("the first input must have rows" + first_.shape.received());
    rows_ = {first_.type, 1, first_.shape.back()};
    rows_.count = row_shape().count();
  }

  Tensor input(int i) const { return input_of(context_, status_, i); }

  // An input that must have this shape.
  Tensor input(int i, const char* name, const Shape& shape) const {
    Tensor x = input(i);
    expect(x.shape == shape, name, "does not fit the other inputs", x);
    return x;
  }

  Tensor allocate(int index, Type type, const Shape& shape) const {
    return allocated(context_, status_, index, type, shape);
  }

  // A result like `x`, in the memory of the input `over` if no one else uses it. The caller must not hold that input.
  Tensor allocate_over(int over, int index) const {
    return allocated_over(context_, status_, over, index, shape()).first;
  }

  const HeedRows& rows() const { return rows_; }
  const Shape& shape() const { return first_.shape; }
  // The shapes of one number, and of two, for each row.
  Shape row_shape() const { return {shape().begin(), shape().end() - 1}; }
  Shape pair_shape() const {
    Shape result = Shape::of_rank(shape().rank());
    result[0] = 2;
    std::copy(shape().begin(), shape().end() - 1, result.begin() + 1);
    return result;
  }
  Type type() const { return first_.type; }
  Type compute_type() const { return compute_type_of(type()); }
  int threads() const { return settings.thread_count(); }

  const Numbers<Settings>& settings;

 private:
  TF_OpKernelContext* const context_;
  const Status status_;
  Array first_;
  HeedRows rows_{};
};

// HeedCrossEntropy: logits, labels, smoothing.
struct CrossEntropy {
  Tensor logits, labels;
  HeedCrossEntropy call;

  explicit CrossEntropy(const RowCall<CrossEntropySettings>& of)
      : logits(of.input(0)), labels(of.input(1, "labels", of.row_shape())) {
    const Tensor smoothing = of.input(2);
    expect(smoothing.shape.rank() == 0 && smoothing.type == of.compute_type(), "smoothing",
           "must be a number of the type that is computed with", smoothing);
    const double ignored = of.settings.ignored;
    if (!(ignored >= INT32_MIN && ignored <= INT32_MAX)) fail("the ignored label must have 32 bits");
    call = {of.rows(), logits.data, labels.as<int32_t>(), static_cast<int32_t>(ignored),
            smoothing.type == kFloat64 ? *smoothing.as<double>() : *smoothing.as<float>()};
  }
};

void run_cross_entropy(void* form, TF_OpKernelContext* context) {
  guarded(context, [&] {
    const RowCall<CrossEntropySettings> of(form, context);
    const CrossEntropy read(of);
    const Tensor losses = of.allocate(0, of.compute_type(), of.row_shape());
    const Tensor softmax = of.allocate(1, of.compute_type(), of.pair_shape());
    check(heed_cross_entropy(&read.call, losses.data, softmax.data, of.threads()));
  });
}

// The extra inputs are softmax and losses_gradient.
void run_cross_entropy_gradient(void* form, TF_OpKernelContext* context) {
  guarded(context, [&] {
    const RowCall<CrossEntropySettings> of(form, context);
    const Tensor gradient = of.allocate_over(0, 0);
    CrossEntropy read(of);
    const Tensor softmax = of.input(3, "softmax", of.pair_shape());
    const Tensor losses_gradient = of.input(4, "losses_gradient", of.row_shape());
    check(heed_cross_entropy_gradient(&read.call, softmax.data, losses_gradient.data, gradient.data, of.threads()));
  });
}

// HeedNormalization: x, scale and offset, each (0,) for none.
struct Normalization {
  Tensor x, scale, offset;
  HeedNormalization call;

  explicit Normalization(const RowCall<NormalizationSettings>& of)
      : x(of.input(0)), scale(of.input(1)), offset(of.input(2)) {
    call = {of.rows(),
            x.data,
            optional_vector(of, scale, "scale"),
            optional_vector(of, offset, "offset"),
            of.settings.epsilon,
            of.settings.rms != 0};
  }

 private:
  static const void* optional_vector(const RowCall<NormalizationSettings>& of, const Tensor& vector, const char* name) {
    expect(vector.type == of.compute_type(), name, "must be of the type that is computed with", vector);
    if (vector.shape == Shape{0}) return nullptr;
    expect(vector.shape == Shape{of.rows().width}, name, "must have as many numbers as a row (D)", vector);
    return vector.data;
  }
};

void run_normalization(void* form, TF_OpKernelContext* context) {
  guarded(context, [&] {
    const RowCall<NormalizationSettings> of(form, context);
    const Normalization read(of);
    const Tensor y = of.allocate(0, of.type(), of.shape());
    const Tensor moments = of.allocate(1, of.compute_type(), of.pair_shape());
    check(heed_normalization(&read.call, y.data, moments.data, of.threads()));
  });
}

// The extra inputs are moments and y_gradient.
void run_normalization_gradient(void* form, TF_OpKernelContext* context) {
  guarded(context, [&] {
    const RowCall<NormalizationSettings> of(form, context);
    of.input(4, "y_gradient", of.shape());
    const Tensor x_gradient = of.allocate_over(4, 0);
    const Normalization read(of);
    const Tensor scale_gradient = of.allocate(1, of.compute_type(), read.scale.shape);
    const Tensor offset_gradient = of.allocate(2, of.compute_type(), read.offset.shape);
    const Tensor moments = of.input(3, "moments", of.pair_shape()), y_gradient = of.input(4);
    check(heed_normalization_gradient(&read.call, moments.data, y_gradient.data, x_gradient.data,
                                      read.call.scale ? scale_gradient.data : nullptr,
                                      read.call.offset ? offset_gradient.data : nullptr, of.threads()));
  });
}

// HeedDropout: x, seed, one residual or none.
void run_dropout(void* form, TF_OpKernelContext* context) {
  guarded(context, [&] {
    const RowCall<DropoutSettings> of(form, context);
    constexpr int kResidual = 2;
    const bool has_residual = TF_NumInputs(context) > kResidual;
    if (TF_NumInputs(context) > kResidual + 1) fail("there must be one residual or none");
    if (has_residual) of.input(kResidual, "residual", of.shape());
    const Tensor y = of.allocate_over(has_residual ? kResidual : 0, 0);
    const Tensor x = of.input(0), residual = of.input(has_residual ? kResidual : 0), key = of.input(1, "seed", {2});
    const uint32_t* seed = key.as<uint32_t>();
    const HeedDropout call{
        of.rows(), x.data, has_residual ? residual.data : nullptr, of.settings.rate, {seed[0], seed[1]}};
    check(heed_dropout(&call, y.data, of.threads()));
  });
}

// The shape of one number for each row of the first input.
void shape_of_rows(TF_ShapeInferenceContext* context, TF_Status* status) {
  const Tracing trace(context, status);
  const auto x = trace.input(0);
  trace.output(0, trace.part(x, 0, -1));
}

}  // namespace

void register_row_ops() {
  const auto with = [](Arguments inputs, const Arguments& extra) {
    inputs.insert(inputs.end(), extra.begin(), extra.end());
    return inputs;
  };
  const Arguments form{"C: {float, double}", "form: string"};
  const Arguments cross_entropy{"logits: T", "labels: int32", "smoothing: C"};
  register_form<CrossEntropySettings>("HeedCrossEntropy", shape_of_rows, run_cross_entropy, form, cross_entropy,
                                      {"losses: C", "softmax: C"});
  register_form<CrossEntropySettings>("HeedCrossEntropyGradient", shapes_of_first<1>, run_cross_entropy_gradient, form,
                                      with(cross_entropy, {"softmax: C", "losses_gradient: C"}),
                                      {"logits_gradient: T"});

  const Arguments normalization{"x: T", "scale: C", "offset: C"};
  register_form<NormalizationSettings>("HeedNormalization", shapes_of_first<1>, run_normalization, form, normalization,
                                       {"y: T", "moments: C"});
  register_form<NormalizationSettings>("HeedNormalizationGradient", shapes_of_first<3>, run_normalization_gradient,
                                       form, with(normalization, {"moments: C", "y_gradient: T"}),
                                       {"x_gradient: T", "scale_gradient: C", "offset_gradient: C"});

  register_form<DropoutSettings>("HeedDropout", shapes_of_first<1>, run_dropout, {"R: int >= 0", "form: string"},
                                 {"x: T", "seed: uint32", "residual: R * T"}, {"y: T"});
}

}  // namespace heed::tf
