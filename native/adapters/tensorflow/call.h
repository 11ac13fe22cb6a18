// Reads the inputs of the attention ops into the struct of heed.h.
//
// Optional inputs, and those that broadcast, come in lists:
//   settings  double: see AttentionSettings
//   reals     dot-product attention: bias (of rank 4), slopes (N,); additive attention: score vector (U,), then bias
//             (U,). If there is none, a number of type C; graphs leave it out if that is float
//   numbers   int32, each (), (B,) or (B, length)
//   arrays    bool, of rank 4
//   rules     int64 (R, 7), unless there are none: see RuleRow. A last row of kind -1 holds the align of ALiBi
//   seeds     uint32 (2), for dropout
// An input that is not needed is left out: each takes 0.1 to 0.2 us, a tenth of a small op.
#pragma once

#include "settings.h"

namespace heed::tf {

// The axes of lengths and heads in query, key and value; the batch comes first, the features last.
struct Layout {
  int rank, length_axis, heads_axis;  // heads_axis -1: one head, additive attention

  constexpr bool additive() const { return heads_axis < 0; }
  int64_t heads(const Tensor& x) const { return additive() ? 1 : x.dim(heads_axis); }
};
inline constexpr Layout kLengthFirst{4, 1, 2}, kHeadsFirst{4, 2, 1}, kNoHeads{3, 1, -1};

// The inputs are query, key, value, settings, `extra` more from kFirstExtra on, and the lists.
inline constexpr int kFirstExtra = 4;

class Call {
 public:
  Call(TF_OpKernelContext* context, const Layout& layout, int extra)
      : context_(context), layout_(layout), inputs_(inputs_of(context, status_)) {
    read_sizes();

    HeedAttention& a = attention;
    const auto s = read_settings<AttentionSettings>(input(3));
    a.scale = s.scale, a.soft_cap = s.soft_cap, a.dropout = s.dropout;
    threads_ = thread_count(s.threads);

    reals_ = list_after(kFirstExtra + extra, compute_type());
    numbers_ = list_after(reals_.end, kInt32);
    arrays_ = list_after(numbers_.end, kBool);
    const List rules = list_after(arrays_.end, kInt64), seeds = list_after(rules.end, kUint32);
    if (seeds.end != static_cast<int>(inputs_.size())) fail("`reals` must be of the type that is computed with");
    read_reals(s);
    for (int i = rules.begin; i < rules.end; ++i) add_rules(input(i));
    for (int i = seeds.begin; i < seeds.end; ++i) {
      if (input(i).dims() != Dims{2}) fail("a seed must have shape (2,)" + input(i).described());
      a.seed[0] = input(i).data<uint32_t>()[0], a.seed[1] = input(i).data<uint32_t>()[1];
    }
    a.rules = rules_.data();
    a.rule_count = static_cast<int32_t>(rules_.size());
    // Before results are allocated: empty tensors may have any size of features.
    check(heed_check(&a));
  }

  int type() const { return input(0).type(); }
  int compute_type() const { return type() == kDouble ? kDouble : kFloat; }
  int threads() const { return threads_; }

  const Tensor& input(int i) const { return inputs_[static_cast<size_t>(i)]; }

  // An input that must have this shape.
  const Tensor& expect(int i, const char* name, const Dims& dims) const {
    const Tensor& x = input(i);
    if (x.dims() != dims) fail(std::string("`") + name + "` does not fit the other inputs" + x.described());
    return x;
  }

  // The output of that index.
  Tensor allocate(int index, int type, const Dims& dims) {
    return allocated(context_, status_, index, type, dims, bytes_of(type));
  }

  Dims output_dims() const {
    Dims result = input(0).dims();
    result.back() = attention.value_dim;
    return result;
  }

  Dims lse_dims() const {
    const HeedAttention& a = attention;
    return layout_.additive() ? Dims{a.batch, a.query_length} : Dims{a.batch, a.heads, a.query_length};
  }

  Dims softmax_dims() const { return {heed_softmax_size(&attention)}; }

  // A tensor of the layout, as a HeedTensor.
  HeedTensor rows(const Tensor& x) const {
    const int64_t last = x.dim(layout_.rank - 1), both = times(x.dim(layout_.rank - 2), last);
    if (layout_.additive()) return {x.data(), both, last, 0};
    const bool length_first = layout_.length_axis == 1;
    return {x.data(), times(x.dim(1), both), length_first ? both : last, length_first ? last : both};
  }

  HeedAttention attention{};

 private:
  // A list: inputs [begin, end), of one type.
  struct List {
    int begin, end;
  };

  void read_sizes() {
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

  void read_reals(const AttentionSettings& settings) {
    const bool bias = settings.has_bias != 0, slopes = settings.has_slopes != 0;
    int64_t next = 0;
    if (layout_.additive()) {
      attention.score_vector = vector(at(reals_, next++), "score_vector", "U", attention.head_dim);
      if (bias) attention.unit_bias = vector(at(reals_, next++), "bias", "U", attention.head_dim);
      return;
    }
    if (bias) attention.bias = scores(at(reals_, next++), "bias");
    if (slopes) attention.alibi_slopes = vector(at(reals_, next++), "alibi_slopes", "N", attention.heads);
  }

  const void* vector(const Tensor& x, const char* name, const char* letter, int64_t length) const {
    if (x.dims() != Dims{length}) fail(std::string("`") + name + "` must have shape (" + letter + ",)" + x.described());
    return x.data();
  }

  void add_rules(const Tensor& rules) {
    constexpr int64_t kRow = kFieldCount<RuleRow>;
    if (rules.rank() != 2 || rules.dim(1) != kRow)
      fail("rules must have shape (R, " + std::to_string(kRow) + ")" + rules.described());
    for (int64_t r = 0; r < rules.dim(0); ++r) add_rule(read_fields<RuleRow>(rules.data<int64_t>() + kRow * r));
  }

  void add_rule(const RuleRow& row) {
    if (row.kind < 0) {
      attention.alibi_align = integers(row.align);
      return;
    }
    HeedMaskRule rule{};
    rule.kind = static_cast<int32_t>(std::min<int64_t>(row.kind, INT32_MAX));
    rule.left = row.left, rule.right = row.right;
    rule.align = integers(row.align), rule.first = integers(row.first), rule.second = integers(row.second);
    if (row.dense >= 0) rule.dense = scores(at(arrays_, row.dense), "mask");
    rules_.push_back(rule);
  }

  List list_after(int begin, int type) const {
    int end = begin;
    while (end < static_cast<int>(inputs_.size()) && input(end).type() == type) ++end;
    return {begin, end};
  }

  const Tensor& at(const List& list, int64_t i) const {
    if (i < 0 || i >= list.end - list.begin) fail("settings or rules name an input that is not there");
    return input(list.begin + static_cast<int>(i));
  }

  HeedIntegers integers(int64_t index) const {
    if (index < 0) return {};
    const Tensor& x = at(numbers_, index);
    if (x.rank() > 2) fail("numbers of a mask must have rank 2 at most" + x.described());
    return {x.data<int32_t>(), x.rank() > 0 ? x.dim(0) : 1, x.rank() > 1 ? x.dim(1) : 1};
  }

  HeedScores scores(const Tensor& x, const char* name) const {
    if (x.rank() != 4) fail(std::string("`") + name + "` must have rank 4");
    HeedScores result{x.data(), {}, {}};
    int64_t stride = 1;
    for (int axis = 3; axis >= 0; --axis) {
      result.shape[axis] = x.dim(axis);
      result.stride[axis] = x.dim(axis) == 1 ? 0 : stride;
      stride = times(stride, x.dim(axis));
    }
    return result;
  }

  TF_OpKernelContext* const context_;
  const Layout layout_;
  const Status status_;
  const std::vector<Tensor> inputs_;
  int threads_ = 1;
  List reals_{}, numbers_{}, arrays_{};
  std::vector<HeedMaskRule> rules_;
};

}  // namespace heed::tf
