// The inputs that all ops share, read into the struct of heed.h.
//
// What broadcasts or may be missing comes in lists:
//   settings  double (6): scale, soft cap, dropout, whether there is a bias, whether there are slopes, threads
//   seed      uint32 (2)
//   rules     int64 (R, 7): kind, left, right, and which of `numbers` is align, first, second, which of `arrays` is
//             dense; -1 for none. One more row, for ALiBi, may follow with kind -1: only its align counts.
//   reals     dot-product attention: a number that only says which type C is, then bias (of rank 4), slopes (N,);
//             additive attention: score vector (U,), then bias (U,)
//   numbers   int32, each (), (B,) or (B, length)
//   arrays    bool, of rank 4
#pragma once

#include <vector>

#include "tensors.h"

namespace heed::tf {

using Dims = std::vector<int64_t>;

// Where lengths and heads are in query, key and value; the batch comes first, the features last.
struct Layout {
  int rank, length_axis, heads_axis;  // heads_axis -1: one head, additive attention

  constexpr bool additive() const { return heads_axis < 0; }
  int64_t heads(const Input& x) const { return additive() ? 1 : x.dim(heads_axis); }
};
inline constexpr Layout kLengthFirst{4, 1, 2}, kHeadsFirst{4, 2, 1}, kNoHeads{3, 1, -1};

// The inputs are query, key, value, settings, seed, rules, `extra` more from kFirstExtra on, and the lists.
inline constexpr int kFirstExtra = 6;

class Call {
 public:
  Call(TF_OpKernelContext* context, const Layout& layout, int extra);

  int type() const { return TF_TensorType(inputs_[0].tensor); }
  int compute_type() const { return type() == kDouble ? kDouble : kFloat; }
  int threads() const { return threads_; }

  Dims dims(int i) const { return inputs_[static_cast<size_t>(i)].dims(); }
  Dims output_dims() const;
  Dims lse_dims() const;
  Dims softmax_dims() const;

  // An input whose shape must be that.
  const Input& expect(int i, const char* name, const Dims& dims) const;

  // A whole tensor of the layout.
  HeedTensor tensor(void* data, const Dims& dims) const;

  TF_Tensor* allocate(TF_OpKernelContext* context, int index, int type, const Dims& dims);

  HeedAttention attention{};

 private:
  // Inputs [begin, end), of one type: one of the lists at the end.
  struct List {
    size_t begin, end;
  };

  void read(size_t first_real);
  void read_reals(const double* settings);
  const void* vector(const Input& x, const char* name, const char* letter, int64_t length) const;
  void add_rule(const int64_t* row);
  List list_after(size_t begin, int type) const;
  const Input& at(const List& list, int64_t i) const;
  HeedIntegers integers(int64_t index) const;
  HeedScores scores(const Input& x, const char* name) const;

  Layout layout_;
  std::vector<Input> inputs_;
  Status status_;
  int threads_ = 1;
  List reals_{}, numbers_{}, arrays_{};
  std::vector<HeedMaskRule> rules_;
};

}  // namespace heed::tf
