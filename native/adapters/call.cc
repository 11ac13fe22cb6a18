#include "call.h"

#include <algorithm>

namespace heed::tf {
namespace {

// ". Received: shape (2, 3)"
std::string describe(const Input& x) {
  std::string text = ". Received: shape (";
  for (int axis = 0; axis < x.rank(); ++axis) text += (axis ? ", " : "") + std::to_string(x.dim(axis));
  return text + ")";
}

}  // namespace

Rows Layout::rows(void* data, const int64_t* dims) const {
  if (additive()) return {data, dims[1] * dims[2], dims[2], 0};
  const int64_t last = dims[3], middle = dims[2] * dims[3], first = dims[1] * middle;
  return length_axis == 1 ? Rows{data, first, middle, last} : Rows{data, first, last, middle};
}

Call::Call(TF_OpKernelContext* context, const Layout& layout, int extra) : layout_(layout) {
  const int count = TF_NumInputs(context);
  inputs_.resize(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    TF_GetInput(context, i, &inputs_[static_cast<size_t>(i)].tensor, status_.status);
    if (!status_.ok()) fail("an input could not be read");
  }
  read(static_cast<size_t>(kFirstExtra + extra));
}

std::vector<int64_t> Call::dims(int i) const {
  std::vector<int64_t> dims;
  for (int axis = 0; axis < (*this)[i].rank(); ++axis) dims.push_back((*this)[i].dim(axis));
  return dims;
}

const Input& Call::expect(int i, const char* name, const std::vector<int64_t>& dims) const {
  if (this->dims(i) != dims) fail(std::string("`") + name + "` does not fit the other inputs" + describe((*this)[i]));
  return (*this)[i];
}

TF_Tensor* Call::allocate(TF_OpKernelContext* context, int index, int type, const std::vector<int64_t>& dims) {
  size_t bytes = bytes_of(type);
  for (int64_t n : dims) bytes *= static_cast<size_t>(n);
  TF_Tensor* made =
      TF_AllocateOutput(context, index, type, dims.data(), static_cast<int>(dims.size()), bytes, status_.status);
  if (!status_.ok() || !made) throw Failed{"out of memory for the result of attention", kResourceExhausted};
  return made;
}

void Call::read(size_t first_real) {
  Attention& a = attention;
  for (int i = 0; i < 3; ++i)
    if ((*this)[i].rank() != layout_.rank) fail("query, key and value must have rank " + std::to_string(layout_.rank));
  const Input &query = (*this)[0], &key = (*this)[1], &value = (*this)[2];
  const int last = layout_.rank - 1;
  a.number = number_of(type());
  a.batch = query.dim(0), a.queries = query.dim(layout_.length_axis), a.heads = layout_.heads(query);
  a.keys = key.dim(layout_.length_axis), a.groups = layout_.heads(key);
  a.width = query.dim(last), a.value_width = value.dim(last);
  if (key.dim(0) != a.batch || value.dim(0) != a.batch)
    fail("`key` and `value` must have the batch size of `query` (B)");
  if (value.dim(layout_.length_axis) != a.keys) fail("`value` must be as long as `key` (S)");
  if (layout_.heads(value) != a.groups) fail("`value` must have as many heads as `key` (K)");
  if (key.dim(last) != a.width)
    fail(std::string("`key` must have as many features as `query` ") + (layout_.additive() ? "(U)" : "(H)"));
  // Before results are allocated: empty tensors may have any other size.
  for (int64_t n : {a.width, a.value_width})
    if (n < 1 || n > 65536) fail("features must be in [1, 65536]");
  a.query = rows(0), a.key = rows(1), a.value = rows(2);

  const Input &settings = (*this)[3], &seed = (*this)[4], &rules = (*this)[5];
  if (settings.rank() != 1 || settings.dim(0) != 6 || seed.rank() != 1 || seed.dim(0) != 2 || rules.rank() != 2 ||
      rules.dim(1) != 7)
    fail("settings, seed and rules must have shapes (6,), (2,) and (R, 7)");
  const double* s = settings.data<double>();
  a.scale = s[0], a.soft_cap = s[1], a.dropout = s[2];
  threads_ = s[5] >= 1 ? static_cast<int>(std::min(s[5], 65536.0)) : heed_available_threads();
  a.seed[0] = seed.data<uint32_t>()[0], a.seed[1] = seed.data<uint32_t>()[1];

  reals_ = list_after(first_real, compute_type());
  numbers_ = list_after(reals_.end, kInt32);
  arrays_ = list_after(numbers_.end, kBool);
  if (arrays_.end != inputs_.size()) fail("`reals` must be of the type that is computed with");
  read_reals(s);
  for (int64_t r = 0; r < rules.dim(0); ++r) add_rule(rules.data<int64_t>() + 7 * r);
}

void Call::read_reals(const double* settings) {
  const bool bias = settings[3] != 0, slopes = settings[4] != 0;
  int64_t next = 0;
  const Input& first = at(reals_, next++);
  if (layout_.additive()) {
    additive.score_vector = vector(first, "score_vector", "U", attention.width);
    if (bias) additive.bias = vector(at(reals_, next++), "bias", "U", attention.width);
    return;
  }
  if (bias) attention.bias = scores(at(reals_, next++), "bias");
  if (slopes) attention.slopes = vector(at(reals_, next++), "alibi_slopes", "N", attention.heads);
}

const void* Call::vector(const Input& x, const char* name, const char* letter, int64_t length) const {
  if (x.rank() != 1 || x.dim(0) != length)
    fail(std::string("`") + name + "` must have shape (" + letter + ",)" + describe(x));
  return x.data();
}

void Call::add_rule(const int64_t* row) {
  Attention& a = attention;
  if (row[0] < 0) {
    a.slope_align = numbers("align", row[3], 1, &a.slope_align_stride, 0);
    return;
  }
  if (a.rules == kMostRules) fail("a mask may have at most 8 rules");
  if (row[0] > static_cast<int64_t>(Rule::kDense)) fail("unknown kind of mask rule");
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
  if (row[6] >= 0) rule.dense = scores(at(arrays_, row[6]), "mask");
}

Call::List Call::list_after(size_t begin, int type) const {
  size_t end = begin;
  while (end < inputs_.size() && TF_TensorType(inputs_[end].tensor) == type) ++end;
  return {begin, end};
}

const Input& Call::at(const List& list, int64_t i) const {
  if (i < 0 || i >= static_cast<int64_t>(list.end - list.begin))
    fail("settings or rules name an input that is not there");
  return inputs_[list.begin + static_cast<size_t>(i)];
}

// (), (B,) or (1,); of rank 2 (B or 1, length).
const int32_t* Call::numbers(const char* name, int64_t index, int rank, int64_t* stride, int64_t length) const {
  if (index < 0) return nullptr;
  const Input& x = at(numbers_, index);
  const bool batched = x.rank() == rank;
  if ((!batched && !(rank == 1 && x.rank() == 0)) || (batched && x.dim(0) != attention.batch && x.dim(0) != 1) ||
      (rank == 2 && x.dim(1) != length))
    fail(std::string("`") + name + "` of the mask must have shape " +
         (rank == 2 ? "(B, T) for queries, (B, S) for keys" : "(B,)") + describe(x));
  *stride = !batched || x.dim(0) == 1 ? 0 : rank == 2 ? length : 1;
  return x.data<int32_t>();
}

Scores Call::scores(const Input& x, const char* name) const {
  const int64_t full[4] = {attention.batch, attention.heads, attention.queries, attention.keys};
  if (x.rank() != 4) fail(std::string("`") + name + "` must have rank 4");
  Scores result{x.data(), {}};
  int64_t stride = 1;
  for (int axis = 3; axis >= 0; --axis) {
    if (x.dim(axis) != full[axis] && x.dim(axis) != 1)
      fail(std::string("`") + name + "` must broadcast to (B, N, T, S)" + describe(x));
    result.stride[axis] = x.dim(axis) == 1 ? 0 : stride;
    stride *= std::max<int64_t>(1, x.dim(axis));  // 0 says that an axis broadcasts
  }
  return result;
}

}  // namespace heed::tf
