// Reads a call of attention from arrays into the struct of heed.h, for all adapters.
//
// A call is a form, bytes that are the same for all calls of one kind, and arrays:
//   query, key, value
//   of a backward pass: output, softmax, output_gradient, lse_gradient
//   operands: those that the form names, by their places among them
// The form is a Header, its Rules and, as int64, a program. src/heed/ops/core/form.py writes it.
//
// The core checks what its struct holds (heed_check). Checked here is what the struct cannot hold: that arrays which
// share a size agree on it, and that operands are there.
#pragma once

#include <memory>

#include "array.h"

namespace heed {

// All fields of these structs have 8 bytes. Places of operands: see Place. `program` is how many int64 follow the
// rules.
struct Header {
  double dropout;
  HeedScoring scoring;
  int64_t score, layout, threads, score_vector, bias, slopes, seed, rules, program;
};

// A HeedMaskRule. `align` and `first` are numbers where `align_in` and `first_in` say kNumber. Kind -1 is no rule: it
// holds the align of ALiBi.
struct Rule {
  int64_t kind, left, right, align, first, align_in, first_in, second_in, dense_in;
};

// A program: this, then each captured array, scatter, and instruction of both lists.
struct ProgramHeader {
  int64_t score, keep, score_gradient, captures, scatters, forward, derivative;
};
struct CapturedOperand {
  int64_t type, place;
};
struct ScatterWords {
  int64_t capture, position, gradient;
};

// The place of an operand, or one of these.
enum Place : int64_t { kNone = -1, kNumber = -2 };

enum Layout : int64_t { kLengthFirst, kHeadsFirst, kNoHeads };

// A form whose bytes have been read.
class Form {
 public:
  Header header{};

  explicit Form(std::string_view bytes) {
    Reader reader(bytes, "`form` must hold a header, its rules and its program");
    reader.read(&header).read(rules_, header.rules);
    if (header.layout < kLengthFirst || header.layout > kNoHeads) fail("`form` must name a layout");
    if (header.program) read_program(reader);
    reader.end();
    for (const Rule& rule : rules_) numbers_.push_back(narrow(rule.align)), numbers_.push_back(narrow(rule.first));
  }

  const std::vector<Rule>& rules() const { return rules_; }
  // `align` and `first` of a rule.
  const int32_t* numbers(size_t rule) const { return &numbers_[2 * rule]; }

  // Its captured arrays are without data; null if there is none.
  const HeedProgram* program() const { return header.program ? &program_ : nullptr; }
  const std::vector<CapturedOperand>& captured() const { return captured_; }

  bool has_heads() const { return header.layout != kNoHeads; }
  int length_axis() const { return header.layout == kHeadsFirst ? 2 : 1; }
  int heads_axis() const { return 3 - length_axis(); }

 private:
  static int32_t narrow(int64_t x) {
    return static_cast<int32_t>(std::clamp(x, int64_t{INT32_MIN}, int64_t{INT32_MAX}));
  }

  void read_program(Reader& reader) {
    if (static_cast<uint64_t>(header.program) != reader.rest() / sizeof(int64_t)) fail("`form` must hold its program");
    ProgramHeader p{};
    std::vector<ScatterWords> wide;
    reader.read(&p).read(captured_, p.captures), reader.read(wide, p.scatters);
    reader.read(forward_, p.forward), reader.read(derivative_, p.derivative);
    for (const ScatterWords& x : wide) scatters_.push_back({narrow(x.capture), narrow(x.position), narrow(x.gradient)});
    program_.forward = {forward_.data(), narrow(p.forward)};
    program_.derivative = {derivative_.data(), narrow(p.derivative)};
    program_.score = narrow(p.score), program_.keep = narrow(p.keep);
    program_.score_gradient = narrow(p.score_gradient);
    program_.capture_count = narrow(p.captures);
    program_.scatter_count = narrow(p.scatters), program_.scatters = scatters_.data();
  }

  std::vector<Rule> rules_;
  std::vector<int32_t> numbers_;
  HeedProgram program_{};
  std::vector<CapturedOperand> captured_;
  std::vector<HeedScatter> scatters_;
  std::vector<HeedInstruction> forward_, derivative_;
};

// The form of these bytes, until this thread asks for another one: most calls have that of the call before.
inline const Form& form_of(std::string_view bytes) {
  thread_local std::string last;
  thread_local std::unique_ptr<const Form> form;
  if (!form || bytes != last) {
    form = std::make_unique<const Form>(bytes);
    last = bytes;
  }
  return *form;
}

class Call {
 public:
  HeedAttention attention{};

  // `extra`: the arrays between value and operands.
  Call(const Form& form, const Array* arrays, size_t count, size_t extra)
      : form_(form), arrays_(arrays), operands_(arrays + 3 + extra) {
    if (count < 3 + extra) fail("query, key and value must be there");
    operand_count_ = static_cast<int64_t>(count - 3 - extra);
    read_sizes();
    HeedAttention& a = attention;
    const Header& h = form.header;
    a.scoring = h.scoring, a.dropout = h.dropout;
    if (a.score == HEED_ADDITIVE) {
      a.score_vector = vector(h.score_vector, "score_vector", "must have shape (U,)", a.head_dim);
      a.unit_bias = vector(h.bias, "bias", "must have shape (U,)", a.head_dim);
    } else {
      a.bias = scores(h.bias, compute_type(), "bias");
      a.alibi_slopes = vector(h.slopes, "alibi_slopes", "must have shape (N,)", a.heads);
    }
    if (h.seed != kNone) {
      const Array& seed = operand(h.seed, kUint32);
      heed::expect(seed.shape == Shape{2}, "seed", "must have shape (2,)", seed);
      std::memcpy(a.seed, seed.data, sizeof(a.seed));
    }
    for (size_t i = 0; i < form.rules().size(); ++i) add_rule(form.rules()[i], form.numbers(i));
    a.rules = rules_;
    if (form.program()) add_program();
    check(heed_check(&a));
  }

  Type type() const { return arrays_[0].type; }
  Type compute_type() const { return compute_type_of(type()); }

  // Query, key, value, and the extra arrays.
  const Array& array(size_t i) const { return arrays_[i]; }

  // An array that must have this type and shape.
  const Array& expect(size_t i, const char* name, Type type, const Shape& shape) const {
    const Array& x = arrays_[i];
    heed::expect(x.type == type && x.shape == shape, name, "does not fit the other inputs", x);
    return x;
  }

  Shape output_shape() const {
    Shape shape = arrays_[0].shape;
    shape.back() = attention.value_dim;
    return shape;
  }

  Shape lse_shape() const {
    const HeedAttention& a = attention;
    return form_.has_heads() ? Shape{a.batch, a.heads, a.query_length} : Shape{a.batch, a.query_length};
  }

  Shape bias_shape() const { return {attention.bias.shape, attention.bias.shape + 4}; }
  Shape softmax_shape() const { return {heed_softmax_size(&attention)}; }

  // An array of the layout, as a HeedTensor.
  HeedTensor rows(const Array& x) const {
    const Shape& dims = x.shape;
    const int64_t last = dims.back(), both = times(dims[dims.rank() - 2], last);
    if (!form_.has_heads()) return {x.data, both, last, 0};
    const bool length_first = form_.header.layout == kLengthFirst;
    return {x.data, times(dims[1], both), length_first ? both : last, length_first ? last : both};
  }

 private:
  void read_sizes() {
    HeedAttention& a = attention;
    const int64_t rank = form_.has_heads() ? 4 : 3, last = rank - 1, length = form_.length_axis();
    for (int i = 0; i < 3; ++i)
      if (arrays_[i].shape.rank() != rank) fail("query, key and value must have rank " + std::to_string(rank));
    const Shape &query = arrays_[0].shape, &key = arrays_[1].shape, &value = arrays_[2].shape;
    const auto heads = [&](const Shape& dims) { return form_.has_heads() ? dims[form_.heads_axis()] : 1; };
    a.score = static_cast<int32_t>(form_.header.score), a.dtype = arrays_[0].type;
    a.batch = query[0], a.query_length = query[length], a.key_length = key[length];
    a.heads = heads(query), a.kv_heads = heads(key), a.head_dim = query[last], a.value_dim = value[last];
    if (arrays_[1].type != type() || arrays_[2].type != type()) fail("query, key and value must have one dtype");
    if (key[0] != a.batch || value[0] != a.batch) fail("`key` and `value` must have the batch size of `query` (B)");
    if (value[length] != a.key_length) fail("`value` must be as long as `key` (S)");
    if (heads(value) != a.kv_heads) fail("`value` must have as many heads as `key` (K)");
    if (key[last] != a.head_dim)
      fail(std::string("`key` must have as many features as `query` ") + (form_.has_heads() ? "(H)" : "(U)"));
    a.query = rows(arrays_[0]), a.key = rows(arrays_[1]), a.value = rows(arrays_[2]);
  }

  const Array& operand(int64_t place, Type type) const {
    if (place < 0 || place >= operand_count_) fail("`form` names an operand that is not there");
    if (operands_[place].type != type) fail("an operand has a wrong dtype");
    return operands_[place];
  }

  const void* vector(int64_t place, const char* name, const char* requirement, int64_t length) const {
    if (place == kNone) return nullptr;
    const Array& x = operand(place, compute_type());
    heed::expect(x.shape == Shape{length}, name, requirement, x);
    return x.data;
  }

  HeedScores scores(int64_t place, Type type, const char* name) const {
    HeedScores result{};
    if (place == kNone) return result;
    const Array& x = operand(place, type);
    heed::expect(x.shape.rank() == 4, name, "must have rank 4", x);
    result.data = x.data;
    int64_t stride = 1;
    for (int axis = 3; axis >= 0; --axis) {
      result.shape[axis] = x.shape[axis];
      result.stride[axis] = x.shape[axis] == 1 ? 0 : stride;
      stride = times(stride, x.shape[axis]);
    }
    return result;
  }

  HeedIntegers integers(int64_t place, const int32_t* number) const {
    if (place == kNone) return {};
    if (place == kNumber && number) return {number, 1, 1};
    const Array& x = operand(place, kInt32);
    const Shape& dims = x.shape;
    const int64_t rank = dims.rank();
    if (rank > 2) fail("numbers of a mask must have rank 2 at most" + x.shape.received());
    return {static_cast<const int32_t*>(x.data), rank > 0 ? dims[0] : 1, rank > 1 ? dims[1] : 1};
  }

  void add_rule(const Rule& from, const int32_t* numbers) {
    const HeedIntegers align = integers(from.align_in, numbers);
    if (from.kind < 0) {
      attention.alibi_align = align;
      return;
    }
    const int32_t place = attention.rule_count++;
    if (place >= HEED_MAX_RULES) return;  // heed_check refuses so many, by their number
    HeedMaskRule& rule = rules_[place] = {};
    rule.kind = static_cast<int32_t>(std::min<int64_t>(from.kind, INT32_MAX));
    rule.left = from.left, rule.right = from.right, rule.align = align;
    rule.first = integers(from.first_in, numbers + 1), rule.second = integers(from.second_in, nullptr);
    rule.dense = scores(from.dense_in, kBool, "mask");
  }

  void add_program() {
    program_ = *form_.program();
    for (const CapturedOperand& x : form_.captured()) {
      const Array& array = operand(x.place, x.type == HEED_FLOAT ? compute_type()
                                            : x.type == HEED_INT ? kInt32
                                                                 : kBool);
      captures_.push_back({array.data, array.shape.count(), static_cast<int32_t>(std::clamp<int64_t>(x.type, -1, 3))});
    }
    program_.captures = captures_.data();
    attention.program = &program_;
  }

  const Form& form_;
  const Array* const arrays_;
  const Array* const operands_;
  int64_t operand_count_ = 0;
  HeedMaskRule rules_[HEED_MAX_RULES];
  HeedProgram program_ = {};
  std::vector<HeedCapture> captures_;
};

// The passes. `result(i, type, shape)` is where the result of that index goes, an Array.
inline constexpr size_t kNoExtra = 0, kOfForward = 4;

template <class Result>
void run_forward(const Call& call, const Result& result, int threads) {
  const Array output = result(0, call.type(), call.output_shape());
  const Array lse = result(1, call.compute_type(), call.lse_shape());
  const Array softmax = result(2, call.compute_type(), call.softmax_shape());
  const HeedForward results{call.rows(output), lse.data, softmax.data};
  check(heed_forward(&call.attention, &results, threads));
}

inline HeedBackward read_backward(const Call& call) {
  const Shape shape = call.output_shape();
  HeedBackward pass{};
  pass.output = call.rows(call.expect(3, "output", call.type(), shape));
  pass.softmax = call.expect(4, "softmax", call.compute_type(), call.softmax_shape()).data;
  pass.output_gradient = call.rows(call.expect(5, "output_gradient", call.type(), shape));
  pass.lse_gradient = call.expect(6, "lse_gradient", call.compute_type(), call.lse_shape()).data;
  return pass;
}

// Gradients of query, key and value; of additive attention of the score vector and the bias, (U,) even without one; and
// of the captured arrays that get some, flat.
template <class Result>
void run_backward(const Call& call, const Result& result, int threads) {
  HeedBackward pass = read_backward(call);
  HeedTensor* const gradients[] = {&pass.query_gradient, &pass.key_gradient, &pass.value_gradient};
  for (size_t i = 0; i < 3; ++i) *gradients[i] = call.rows(result(i, call.type(), call.array(i).shape));
  if (call.attention.score == HEED_ADDITIVE) {
    const Shape units{call.attention.head_dim};
    pass.score_vector_gradient = result(3, call.compute_type(), units).data;
    pass.bias_gradient = result(4, call.compute_type(), units).data;
  }
  std::vector<void*> of_captured;
  int next = 3;  // additive attention has no program
  const HeedProgram* program = call.attention.program;
  for (int32_t i = 0; program && i < program->capture_count; ++i) {
    const bool is_trained = std::any_of(program->scatters, program->scatters + program->scatter_count,
                                        [i](const HeedScatter& to) { return to.capture == i; });
    const Shape shape{program->captures[i].size};
    of_captured.push_back(is_trained ? result(next++, call.compute_type(), shape).data : nullptr);
  }
  if (!of_captured.empty()) pass.capture_gradients = of_captured.data();
  check(heed_backward(&call.attention, &pass, threads));
}

template <class Result>
void run_bias_gradient(const Call& call, const Result& result, int threads) {
  if (!call.attention.bias.data) fail("there must be a `bias`");
  HeedBackward pass = read_backward(call);
  pass.bias_gradient = result(0, call.compute_type(), call.bias_shape()).data;
  check(heed_bias_gradient(&call.attention, &pass, threads));
}

}  // namespace heed
