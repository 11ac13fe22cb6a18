// The inputs that all ops share, read into the core's structures.
//
// What broadcasts or may be missing comes in lists:
//   settings  double (6): scale, soft cap, dropout, whether there is a bias, whether there are slopes, threads
//   seed      uint32 (2)
//   rules     int64 (R, 7): rule, left, right, and which of `numbers` is align, first, second, which of `arrays` is
//             dense; -1 for none. One more row, for ALiBi, may follow with rule -1: only its align counts.
//   reals     dot-product attention: a number that only says which type C is, then bias (of rank 4), slopes (N,);
//             additive attention: score vector (U,), then bias (U,)
//   numbers   int32, each (), (B,) or (B, length)
//   arrays    bool, of rank 4
#pragma once

#include <vector>

#include "../c_api.h"
#include "tensors.h"

namespace heed::tf {

// Where lengths and heads are in query, key and value; the batch comes first, the features last.
struct Layout {
  int rank, length_axis, heads_axis;  // heads_axis -1: one head, additive attention

  bool additive() const { return heads_axis < 0; }
  int64_t heads(const Input& x) const { return additive() ? 1 : x.dim(heads_axis); }
  Rows rows(void* data, const int64_t* dims) const;
};
inline constexpr Layout kLengthFirst{4, 1, 2}, kHeadsFirst{4, 2, 1}, kNoHeads{3, 1, -1};

// The inputs are query, key, value, settings, seed, rules, `extra` more from kFirstExtra on, and the lists.
inline constexpr int kFirstExtra = 6;

class Call {
 public:
  Call(TF_OpKernelContext* context, const Layout& layout, int extra);

  const Input& operator[](int i) const { return inputs_[static_cast<size_t>(i)]; }
  int type() const { return TF_TensorType(inputs_[0].tensor); }
  int compute_type() const { return type() == kDouble ? kDouble : kFloat; }
  int threads() const { return threads_; }
  std::vector<int64_t> dims(int i) const;

  // An input whose shape must be that.
  const Input& expect(int i, const char* name, const std::vector<int64_t>& dims) const;

  Rows rows(int i) const { return rows_at((*this)[i].data(), dims(i)); }
  Rows rows_at(void* data, const std::vector<int64_t>& dims) const { return layout_.rows(data, dims.data()); }

  TF_Tensor* allocate(TF_OpKernelContext* context, int index, int type, const std::vector<int64_t>& dims);

  Additive additive{};
  Attention& attention = additive.attention;

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
  const int32_t* numbers(const char* name, int64_t index, int rank, int64_t* stride, int64_t length) const;
  Scores scores(const Input& x, const char* name) const;

  Layout layout_;
  std::vector<Input> inputs_;
  Status status_;
  int threads_ = 1;
  List reals_{}, numbers_{}, arrays_{};
};

}  // namespace heed::tf
