// The ops of TensorFlow over the core: they read tensors, call it, and pass on what it says. No arithmetic.
//
// HeedAttention        (B, T, N, H) tensors
// HeedAttentionHeads   (B, N, T, H) tensors
// and the same with Gradient at the end. What broadcasts or may be missing comes in lists:
//   settings  double (6): scale, soft cap, dropout, whether there is a bias, whether there are slopes, threads
//   seed      uint32 (2)
//   rules     int64 (R, 7): rule, left, right, and which of `numbers` is align, first, second, which of `arrays` is
//   dense; -1
//             for none. One more row, for ALiBi, may follow with rule -1: only its align counts.
//   reals     a number that only says which type C is, then bias (of rank 4), slopes (N,)
//   numbers   int32, each (), (B,) or (B, length)
//   arrays    bool, of rank 4
#include <cstdio>
#include <string>
#include <vector>

#include "../c_api.h"
#include "tensorflow_c.h"

namespace heed::tf {
namespace {

struct Input {
  TF_Tensor* tensor = nullptr;
  Input() = default;
  Input(Input&& other) noexcept : tensor(other.tensor) { other.tensor = nullptr; }
  Input(const Input&) = delete;
  ~Input() {
    if (tensor) TF_DeleteTensor(tensor);
  }
  int rank() const { return TF_NumDims(tensor); }
  int64_t dim(int axis) const { return TF_Dim(tensor, axis); }
  template <class T = void>
  T* data() const {
    return static_cast<T*>(TF_TensorData(tensor));
  }
};

struct Status {
  TF_Status* status = TF_NewStatus();
  Status() = default;
  Status(const Status&) = delete;
  ~Status() { TF_DeleteStatus(status); }
  bool ok() const { return TF_GetCode(status) == 0; }
};

Number number_of(int type) {
  switch (type) {
    case kDouble: return Number::kFloat64;
    case kBfloat16: return Number::kBfloat16;
    case kHalf: return Number::kFloat16;
    default: return Number::kFloat32;
  }
}

size_t bytes_of(int type) { return type == kDouble ? 8 : type == kFloat ? 4 : 2; }

// (B, T, N, H) or, if heads come first, (B, N, T, H).
struct Layout {
  int length_axis, heads_axis;
};
constexpr Layout kLengthFirst{1, 2}, kHeadsFirst{2, 1};

Rows rows_of(void* data, const Layout& layout, const int64_t* dims) {
  const int64_t last = dims[3], middle = dims[2] * dims[3], first = dims[1] * middle;
  return layout.length_axis == 1 ? Rows{data, first, middle, last} : Rows{data, first, last, middle};
}

struct Failed {
  std::string text;
  int code = kInvalidArgument;
};

[[noreturn]] void fail(const std::string& text) { throw Failed{text}; }

// ". Received: shape (2, 3)"
std::string describe(const Input& x) {
  std::string text = ". Received: shape (";
  for (int axis = 0; axis < x.rank(); ++axis) text += (axis ? ", " : "") + std::to_string(x.dim(axis));
  return text + ")";
}

// All inputs of one call, read into the core's structure.
class Call {
 public:
  Call(TF_OpKernelContext* context, const Layout& layout, int last_fixed) : layout_(layout) {
    const int count = TF_NumInputs(context);
    inputs_.resize(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) {
      TF_GetInput(context, i, &inputs_[static_cast<size_t>(i)].tensor, status_.status);
      if (!status_.ok()) fail("an input could not be read");
    }
    read(last_fixed);
  }

  const Input& operator[](int i) const { return inputs_[static_cast<size_t>(i)]; }
  int type() const { return TF_TensorType(inputs_[0].tensor); }
  int compute_type() const { return type() == kDouble ? kDouble : kFloat; }
  int threads() const { return threads_; }

  Rows rows(int i) const { return rows_at((*this)[i].data(), i); }
  Rows rows_at(void* data, int like) const {
    const Input& x = (*this)[like];
    const int64_t dims[4] = {x.dim(0), x.dim(1), x.dim(2), x.dim(3)};
    return rows_of(data, layout_, dims);
  }

  TF_Tensor* allocate(TF_OpKernelContext* context, int index, int type, std::vector<int64_t> dims) {
    size_t bytes = bytes_of(type);
    for (int64_t n : dims) bytes *= static_cast<size_t>(n);
    TF_Tensor* made =
        TF_AllocateOutput(context, index, type, dims.data(), static_cast<int>(dims.size()), bytes, status_.status);
    if (!status_.ok() || !made) throw Failed{"out of memory for the result of attention", kResourceExhausted};
    return made;
  }

  Attention attention{};

 private:
  void read(int last_fixed) {
    Attention& a = attention;
    for (int i = 0; i < 3; ++i)
      if ((*this)[i].rank() != 4) fail("query, key and value must have rank 4");
    const Input &query = (*this)[0], &key = (*this)[1], &value = (*this)[2];
    a.number = number_of(type());
    a.batch = query.dim(0), a.queries = query.dim(layout_.length_axis), a.heads = query.dim(layout_.heads_axis);
    a.keys = key.dim(layout_.length_axis), a.groups = key.dim(layout_.heads_axis);
    a.width = query.dim(3), a.value_width = value.dim(3);
    if (key.dim(0) != a.batch || value.dim(0) != a.batch)
      fail("`key` and `value` must have the batch size of `query` (B)");
    if (value.dim(layout_.length_axis) != a.keys) fail("`value` must be as long as `key` (S)");
    if (value.dim(layout_.heads_axis) != a.groups) fail("`value` must have as many heads as `key` (K)");
    if (key.dim(3) != a.width) fail("`key` must have as many features as `query` (H)");
    a.query = rows(0), a.key = rows(1), a.value = rows(2);

    const Input &settings = (*this)[3], &seed = (*this)[4], &rules = (*this)[5];
    if (settings.rank() != 1 || settings.dim(0) != 6 || seed.rank() != 1 || seed.dim(0) != 2 || rules.rank() != 2 ||
        rules.dim(1) != 7)
      fail("settings, seed and rules must have shapes (6,), (2,) and (R, 7)");
    const double* s = settings.data<double>();
    a.scale = s[0], a.soft_cap = s[1], a.dropout = s[2];
    threads_ = s[5] >= 1 ? static_cast<int>(s[5]) : heed_available_threads();
    a.seed[0] = seed.data<uint32_t>()[0], a.seed[1] = seed.data<uint32_t>()[1];

    int next = last_fixed + 2;  // past the number that only says which type C is
    if (s[3] != 0) a.bias = scores((*this)[next++], "bias");
    if (s[4] != 0) {
      const Input& slopes = (*this)[next++];
      if (slopes.rank() != 1 || slopes.dim(0) != a.heads) fail("`alibi_slopes` must have shape (N,)");
      a.slopes = slopes.data();
    }
    first_number_ = next;
    const int count = static_cast<int>(inputs_.size());
    while (next < count && TF_TensorType((*this)[next].tensor) == kInt32) ++next;
    first_array_ = next;
    for (int64_t r = 0; r < rules.dim(0); ++r) add_rule(rules.data<int64_t>() + 7 * r);
  }

  void add_rule(const int64_t* row) {
    Attention& a = attention;
    if (row[0] < 0) {
      a.slope_align = numbers("align", row[3], 1, &a.slope_align_stride, 0);
      return;
    }
    if (a.rules == kMostRules) fail("a mask may have at most 8 rules");
    MaskRule& rule = a.rule[a.rules++];
    rule = {};
    rule.rule = static_cast<Rule>(row[0]);
    rule.left = row[1], rule.right = row[2];
    const bool segments = rule.rule == Rule::kSegments;
    const bool lengths = rule.rule == Rule::kLengths;
    const char* first = segments ? "query_ids" : lengths ? "key_lengths" : "n";
    const char* second = segments ? "key_ids" : "query_lengths";
    rule.align = numbers("align", row[3], 1, &rule.align_stride, 0);
    rule.first = numbers(first, row[4], segments ? 2 : 1, &rule.first_stride, a.queries);
    rule.second = numbers(second, row[5], segments ? 2 : 1, &rule.second_stride, a.keys);
    if (row[6] >= 0) rule.dense = scores(at(first_array_ + row[6]), "mask");
  }

  const Input& at(int64_t i) const {
    if (i < 0 || i >= static_cast<int64_t>(inputs_.size())) fail("a mask rule names an input that is not there");
    return inputs_[static_cast<size_t>(i)];
  }

  // (), (B,) or (1,); of rank 2 (B or 1, length).
  const int32_t* numbers(const char* name, int64_t index, int rank, int64_t* stride, int64_t length) const {
    if (index < 0) return nullptr;
    const Input& x = at(first_number_ + index);
    const bool batched = x.rank() == rank;
    if ((!batched && !(rank == 1 && x.rank() == 0)) || (batched && x.dim(0) != attention.batch && x.dim(0) != 1) ||
        (rank == 2 && x.dim(1) != length))
      fail(std::string("`") + name + "` of the mask must have shape " +
           (rank == 2 ? "(B, T) for queries, (B, S) for keys" : "(B,)") + describe(x));
    *stride = !batched || x.dim(0) == 1 ? 0 : rank == 2 ? length : 1;
    return x.data<int32_t>();
  }

  Scores scores(const Input& x, const char* name) const {
    const int64_t full[4] = {attention.batch, attention.heads, attention.queries, attention.keys};
    if (x.rank() != 4) fail(std::string("`") + name + "` must have rank 4");
    Scores result{x.data(), {}};
    int64_t stride = 1;
    for (int axis = 3; axis >= 0; --axis) {
      if (x.dim(axis) != full[axis] && x.dim(axis) != 1)
        fail(std::string("`") + name + "` must broadcast to (B, N, T, S)" + describe(x));
      result.stride[axis] = x.dim(axis) == 1 ? 0 : stride;
      stride *= x.dim(axis);
    }
    return result;
  }

  Layout layout_;
  std::vector<Input> inputs_;
  Status status_;
  int threads_ = 1, first_number_ = 0, first_array_ = 0;
};

template <class Function>
void guarded(TF_OpKernelContext* context, const Function& function) {
  Failed failed{"", 0};
  try {
    function();
    return;
  } catch (const Failed& f) {
    failed = f;
  } catch (...) {
    failed = {"out of memory", kResourceExhausted};
  }
  Status status;
  TF_SetStatus(status.status, failed.code, failed.text.c_str());
  TF_OpKernelContext_Failure(context, status.status);
}

struct Output {
  TF_Tensor* tensor;
  explicit Output(TF_Tensor* t) : tensor(t) {}
  Output(const Output&) = delete;
  ~Output() { TF_DeleteTensor(tensor); }
  void* data() const { return TF_TensorData(tensor); }
};

template <const Layout& layout>
void run_forward(void*, TF_OpKernelContext* context) {
  guarded(context, [&] {
    Call call(context, layout, 5);
    const Attention& a = call.attention;
    std::vector<int64_t> dims{a.batch, call[0].dim(1), call[0].dim(2), a.value_width};
    const Output output(call.allocate(context, 0, call.type(), dims));
    const Output lse(call.allocate(context, 1, call.compute_type(), {a.batch, a.heads, a.queries}));
    const Forward results{rows_of(output.data(), layout, dims.data()), lse.data()};
    if (const char* problem = heed_forward(&a, &results, call.threads())) fail(problem);
  });
}

TF_Tensor* allocate_like(TF_OpKernelContext* context, Call& call, int i) {
  return call.allocate(context, i, call.type(), {call[i].dim(0), call[i].dim(1), call[i].dim(2), call[i].dim(3)});
}

// Inputs after `rules`: output, lse, output_gradient, lse_gradient.
template <const Layout& layout>
void run_backward(void*, TF_OpKernelContext* context) {
  guarded(context, [&] {
    Call call(context, layout, 9);
    const Attention& a = call.attention;
    Output made[3] = {Output(allocate_like(context, call, 0)), Output(allocate_like(context, call, 1)),
                      Output(allocate_like(context, call, 2))};
    const Backward pass{call.rows(6),
                        call[7].data(),
                        call.rows(8),
                        call[9].data(),
                        call.rows_at(made[0].data(), 0),
                        call.rows_at(made[1].data(), 1),
                        call.rows_at(made[2].data(), 2)};
    if (const char* problem = heed_backward(&a, &pass, call.threads())) fail(problem);
  });
}

// A shape while tracing, released at the end of the scope.
struct Shape {
  TF_ShapeHandle* handle = TF_NewShapeHandle();
  Shape() = default;
  Shape(const Shape&) = delete;
  ~Shape() { TF_DeleteShapeHandle(handle); }
};

struct Tracing {
  TF_ShapeInferenceContext* context;
  TF_Status* status;

  void input(int i, int64_t rank, const Shape& shape) const {
    TF_ShapeInferenceContextGetInput(context, i, shape.handle, status);
    if (TF_GetCode(status) == 0) TF_ShapeInferenceContextWithRank(context, shape.handle, rank, shape.handle, status);
  }
  void part(const Shape& of, int64_t begin, const Shape& result) const {
    if (TF_GetCode(status) == 0)
      TF_ShapeInferenceContextSubshape(context, of.handle, begin, begin + 1, result.handle, status);
  }
  void append(const Shape& to, const Shape& what) const {
    if (TF_GetCode(status) == 0)
      TF_ShapeInferenceContextConcatenateShapes(context, to.handle, what.handle, to.handle, status);
  }
  void output(int i, const Shape& shape) const {
    if (TF_GetCode(status) == 0) TF_ShapeInferenceContextSetOutput(context, i, shape.handle, status);
  }
};

template <const Layout& layout>
void shape_forward(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeInferenceContextSetUnknownShape(context, status);
  const Tracing trace{context, status};
  Shape query, value, piece, output, lse;
  trace.input(0, 4, query);
  trace.input(2, 4, value);
  trace.part(query, 0, output);
  trace.part(query, 0, lse);
  for (int axis : {1, 2}) {
    trace.part(query, axis, piece);
    trace.append(output, piece);
  }
  trace.part(value, 3, piece);
  trace.append(output, piece);
  for (int axis : {layout.heads_axis, layout.length_axis}) {
    trace.part(query, axis, piece);
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

void register_op(const char* name, ShapeFunction shapes, Run run, bool gradient) {
  Status status;
  TF_OpDefinitionBuilder* op = TF_NewOpDefinitionBuilder(name);
  for (const char* attribute :
       {"T: {float, double, bfloat16, half}", "C: {float, double}", "F: int >= 1", "M: int >= 0", "D: int >= 0"})
    TF_OpDefinitionBuilderAddAttr(op, attribute);
  for (const char* input : {"query: T", "key: T", "value: T", "settings: double", "seed: uint32", "rules: int64"})
    TF_OpDefinitionBuilderAddInput(op, input);
  if (gradient)
    for (const char* input : {"output: T", "lse: C", "output_gradient: T", "lse_gradient: C"})
      TF_OpDefinitionBuilderAddInput(op, input);
  for (const char* input : {"reals: F * C", "numbers: M * int32", "arrays: D * bool"})
    TF_OpDefinitionBuilderAddInput(op, input);
  if (gradient)
    for (const char* output : {"query_gradient: T", "key_gradient: T", "value_gradient: T"})
      TF_OpDefinitionBuilderAddOutput(op, output);
  else
    for (const char* output : {"result: T", "result_lse: C"}) TF_OpDefinitionBuilderAddOutput(op, output);
  TF_OpDefinitionBuilderSetShapeInferenceFunction(op, shapes);
  TF_RegisterOpDefinition(op, status.status);
  for (int type : {kFloat, kDouble, kBfloat16, kHalf}) {
    TF_KernelBuilder* kernel =
        TF_NewKernelBuilder(name, "CPU", [](TF_OpKernelConstruction*) -> void* { return nullptr; }, run, [](void*) {});
    TF_KernelBuilder_TypeConstraint(kernel, "T", type, status.status);
    TF_RegisterKernelBuilder(name, kernel, status.status);
  }
  if (!status.ok()) std::fprintf(stderr, "heed: TensorFlow did not take the op %s\n", name);
}

// Runs when the library is loaded: TensorFlow looks for ops that appeared meanwhile.
__attribute__((constructor)) void register_all() {
  if (!bind()) return;
  register_op("HeedAttention", shape_forward<kLengthFirst>, run_forward<kLengthFirst>, false);
  register_op("HeedAttentionHeads", shape_forward<kHeadsFirst>, run_forward<kHeadsFirst>, false);
  register_op("HeedAttentionGradient", shape_backward, run_backward<kLengthFirst>, true);
  register_op("HeedAttentionHeadsGradient", shape_backward, run_backward<kHeadsFirst>, true);
}

}  // namespace
}  // namespace heed::tf
