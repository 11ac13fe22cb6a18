#include "call.h"

#include <algorithm>

namespace heed::tf {

Call::Call(TF_OpKernelContext* context, const Layout& layout, int extra) : context_(context), layout_(layout) {
  inputs_.resize(static_cast<size_t>(TF_NumInputs(context)));
  int i = 0;
  for (Tensor& input : inputs_) {
    TF_Tensor* tensor = nullptr;
    TF_GetInput(context, i++, &tensor, status_.get());
    input.tensor.reset(tensor);
    if (!status_.ok()) fail("an input could not be read");
  }
  read_sizes();

  HeedAttention& a = attention;
  const Tensor &settings = input(3), &seed = input(4), &rules = input(5);
  if (!settings.has_dims({6}) || !seed.has_dims({2}) || rules.rank() != 2 || rules.dim(1) != 7)
    fail("settings, seed and rules must have shapes (6,), (2,) and (R, 7)");
  const double* s = settings.data<double>();
  a.scale = s[0], a.soft_cap = s[1], a.dropout = s[2];
  threads_ = s[5] >= 1 ? static_cast<int>(std::min(s[5], 65536.0)) : heed_available_threads();
  a.seed[0] = seed.data<uint32_t>()[0], a.seed[1] = seed.data<uint32_t>()[1];

  reals_ = list_after(kFirstExtra + extra, compute_type());
  numbers_ = list_after(reals_.end, kInt32);
  arrays_ = list_after(numbers_.end, kBool);
  if (arrays_.end != static_cast<int>(inputs_.size())) fail("`reals` must be of the type that is computed with");
  read_reals(s);
  for (int64_t r = 0; r < rules.dim(0); ++r) add_rule(rules.data<int64_t>() + 7 * r);
  a.rules = rules_.data();
  a.rule_count = static_cast<int32_t>(rules_.size());
  // Before results are allocated: empty tensors may have any size of features.
  check(heed_check(&a));
}

const Tensor& Call::expect(int i, const char* name, const Dims& dims) const {
  const Tensor& x = input(i);
  if (x.dims() != dims) fail(std::string("`") + name + "` does not fit the other inputs" + x.described());
  return x;
}

Tensor Call::allocate(int index, int type, const Dims& dims) {
  size_t bytes = bytes_of(type);
  for (int64_t n : dims) bytes *= static_cast<size_t>(n);
  Tensor made{Owned<TF_Tensor>(
      TF_AllocateOutput(context_, index, type, dims.data(), static_cast<int>(dims.size()), bytes, status_.get()))};
  if (!status_.ok() || !made.tensor) throw Failed{"out of memory for the result of attention", kResourceExhausted};
  return made;
}

Dims Call::output_dims() const {
  Dims result = input(0).dims();
  result.back() = attention.value_dim;
  return result;
}

Dims Call::lse_dims() const {
  const HeedAttention& a = attention;
  return layout_.additive() ? Dims{a.batch, a.query_length} : Dims{a.batch, a.heads, a.query_length};
}

Dims Call::softmax_dims() const {
  Dims result = lse_dims();
  result.insert(result.begin(), 2);
  return result;
}

HeedTensor Call::rows(const Tensor& x) const {
  const int64_t last = x.dim(layout_.rank - 1), both = x.dim(layout_.rank - 2) * last;
  if (layout_.additive()) return {x.data(), both, last, 0};
  const bool length_first = layout_.length_axis == 1;
  return {x.data(), x.dim(1) * both, length_first ? both : last, length_first ? last : both};
}

void Call::read_sizes() {
  HeedAttention& a = attention;
  const Tensor &query = input(0), &key = input(1), &value = input(2);
  for (const Tensor* x : {&query, &key, &value})
    if (x->rank() != layout_.rank) fail("query, key and value must have rank " + std::to_string(layout_.rank));
  const int last = layout_.rank - 1;
  a.score = layout_.additive() ? HEED_ADDITIVE : HEED_DOT_PRODUCT;
  a.dtype = dtype_of(type());
  a.batch = query.dim(0), a.query_length = query.dim(layout_.length_axis), a.heads = layout_.heads(query);
  a.key_length = key.dim(layout_.length_axis), a.kv_heads = layout_.heads(key);
  a.head_dim = query.dim(last), a.value_dim = value.dim(last);
  if (key.dim(0) != a.batch || value.dim(0) != a.batch)
    fail("`key` and `value` must have the batch size of `query` (B)");
  if (value.dim(layout_.length_axis) != a.key_length) fail("`value` must be as long as `key` (S)");
  if (layout_.heads(value) != a.kv_heads) fail("`value` must have as many heads as `key` (K)");
  if (key.dim(last) != a.head_dim)
    fail(std::string("`key` must have as many features as `query` ") + (layout_.additive() ? "(U)" : "(H)"));
  a.query = rows(query), a.key = rows(key), a.value = rows(value);
}

void Call::read_reals(const double* settings) {
  const bool bias = settings[3] != 0, slopes = settings[4] != 0;
  int64_t next = 0;
  const Tensor& first = at(reals_, next++);
  if (layout_.additive()) {
    attention.score_vector = vector(first, "score_vector", "U", attention.head_dim);
    if (bias) attention.unit_bias = vector(at(reals_, next++), "bias", "U", attention.head_dim);
    return;
  }
  if (bias) attention.bias = scores(at(reals_, next++), "bias");
  if (slopes) attention.alibi_slopes = vector(at(reals_, next++), "alibi_slopes", "N", attention.heads);
}

const void* Call::vector(const Tensor& x, const char* name, const char* letter, int64_t length) const {
  if (!x.has_dims({length})) fail(std::string("`") + name + "` must have shape (" + letter + ",)" + x.described());
  return x.data();
}

void Call::add_rule(const int64_t* row) {
  if (row[0] < 0) {
    attention.alibi_align = integers(row[3]);
    return;
  }
  HeedMaskRule rule{};
  rule.kind = static_cast<int32_t>(std::min<int64_t>(row[0], INT32_MAX));
  rule.left = row[1], rule.right = row[2];
  rule.align = integers(row[3]), rule.first = integers(row[4]), rule.second = integers(row[5]);
  if (row[6] >= 0) rule.dense = scores(at(arrays_, row[6]), "mask");
  rules_.push_back(rule);
}

Call::List Call::list_after(int begin, int type) const {
  int end = begin;
  while (end < static_cast<int>(inputs_.size()) && input(end).type() == type) ++end;
  return {begin, end};
}

const Tensor& Call::at(const List& list, int64_t i) const {
  if (i < 0 || i >= list.end - list.begin) fail("settings or rules name an input that is not there");
  return input(list.begin + static_cast<int>(i));
}

HeedIntegers Call::integers(int64_t index) const {
  if (index < 0) return {};
  const Tensor& x = at(numbers_, index);
  if (x.rank() > 2) fail("numbers of a mask must have rank 2 at most" + x.described());
  return {x.data<int32_t>(), x.rank() > 0 ? x.dim(0) : 1, x.rank() > 1 ? x.dim(1) : 1};
}

HeedScores Call::scores(const Tensor& x, const char* name) const {
  if (x.rank() != 4) fail(std::string("`") + name + "` must have rank 4");
  HeedScores result{x.data(), {}, {}};
  int64_t stride = 1;
  for (int axis = 3; axis >= 0; --axis) {
    result.shape[axis] = x.dim(axis);
    result.stride[axis] = x.dim(axis) == 1 ? 0 : stride;
    stride *= x.dim(axis);
  }
  return result;
}

}  // namespace heed::tf
