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

#include "tensors.h"

namespace heed::tf {

// Where lengths and heads are in query, key and value; the batch comes first, the features last.
struct Layout {
  int rank, length_axis, heads_axis;  // heads_axis -1: one head, additive attention

  constexpr bool additive() const { return heads_axis < 0; }
  int64_t heads(const Tensor& x) const { return additive() ? 1 : x.dim(heads_axis); }
};
inline constexpr Layout kLengthFirst{4, 1, 2}, kHeadsFirst{4, 2, 1}, kNoHeads{3, 1, -1};

// The inputs are query, key, value, settings, seed, rules, `extra` more from kFirstExtra on, and the lists.
inline constexpr int kFirstExtra = 6;

class Call {
 public:
  Call(TF_OpKernelContext* context, const Layout& layout, int extra);

  int type() const { return input(0).type(); }
  int compute_type() const { return type() == kDouble ? kDouble : kFloat; }
  int threads() const { return threads_; }

  const Tensor& input(int i) const { return inputs_[static_cast<size_t>(i)]; }
  // One whose shape must be that.
  const Tensor& expect(int i, const char* name, const Dims& dims) const;
  // The output of that index.
  Tensor allocate(int index, int type, const Dims& dims);

  Dims output_dims() const;
  Dims lse_dims() const;
  Dims softmax_dims() const;

  // A whole tensor of the layout.
  HeedTensor rows(const Tensor& x) const;

  HeedAttention attention{};

 private:
  // Inputs [begin, end), of one type: one of the lists at the end.
  struct List {
    int begin, end;
  };

  void read_sizes();
  void read_reals(const double* settings);
  const void* vector(const Tensor& x, const char* name, const char* letter, int64_t length) const;
  void add_rule(const int64_t* row);
  List list_after(int begin, int type) const;
  const Tensor& at(const List& list, int64_t i) const;
  HeedIntegers integers(int64_t index) const;
  HeedScores scores(const Tensor& x, const char* name) const;

  TF_OpKernelContext* const context_;
  const Layout layout_;
  std::vector<Tensor> inputs_;
  const Status status_;
  int threads_ = 1;
  List reals_{}, numbers_{}, arrays_{};
  std::vector<HeedMaskRule> rules_;
};

}  // namespace heed::tf
