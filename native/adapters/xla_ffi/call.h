// Reads the frame of a custom call into the struct of heed.h.
//
// Arguments: query, key, value; of the backward pass softmax, output, output_gradient, lse_gradient; then, where there
// are any, the reals in the compute type (bias of rank 4 and slopes (N,), or score vector and bias (U,)), the seed
// (2,) uint32, the numbers of the mask, int32 (B or 1, length), and its arrays, bool of rank 4.
// Attributes: `settings` double, see Settings, and `rules` int64, a RuleRow each after one number that is not read.
#pragma once

#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "../../include/heed.h"
#include "xla_c.h"

namespace heed::xla {

// Fields as in src/heed/ops/backends/jax/native/wire.py; all are of 8 bytes. `layout`: 0 BTNH, 1 BNTH, 2 BTU.
struct Settings {
  double layout, scale, soft_cap, dropout, has_bias, has_slopes, has_seed;
};

// The last four are indices: of `numbers`, `dense` of `arrays`; -1: none. Kind -1 holds the align of ALiBi.
struct RuleRow {
  int64_t kind, left, right, align, first, second, dense;
};

[[noreturn]] inline void fail(const std::string& message) { throw std::invalid_argument(message); }

inline void check(const char* message) {
  if (message) fail(message);
}

class Call {
 public:
  // `extra` arguments follow the value.
  Call(const XLA_FFI_CallFrame* frame, int64_t extra) : frame_(*frame), next_(3 + extra) {
    const auto settings = attribute<Settings>("settings", kXlaFloat64, 0).at(0);
    layout_ = static_cast<int>(settings.layout);
    read_sizes();
    HeedAttention& a = attention;
    a.scale = settings.scale, a.soft_cap = settings.soft_cap, a.dropout = settings.dropout;
    if (additive()) {
      a.score_vector = vector(a.head_dim);
      if (settings.has_bias != 0) a.unit_bias = vector(a.head_dim);
    } else {
      if (settings.has_bias != 0) a.bias = scores(input(next_++), compute_type());
      if (settings.has_slopes != 0) a.alibi_slopes = vector(a.heads);
    }
    if (settings.has_seed != 0) {
      const auto& seed = typed(input(next_++), kXlaUint32);
      if (seed.rank != 1 || seed.dims[0] != 2) fail("the seed must have shape (2,)");
      std::memcpy(a.seed, seed.data, sizeof(a.seed));
    }
    first_number_ = next_;
    first_array_ = first_number_;
    while (first_array_ < frame_.args.size && input(first_array_).dtype == kXlaInt32) ++first_array_;
    for (const RuleRow& row : attribute<RuleRow>("rules", kXlaInt64, 1)) add_rule(row);
    a.rules = rules_.data();
    a.rule_count = static_cast<int32_t>(rules_.size());
    check(heed_check(&a));
  }

  bool additive() const { return layout_ == 2; }

  const XLA_FFI_Buffer& input(int64_t i) const { return buffer(frame_.args, i); }
  const XLA_FFI_Buffer& result(int64_t i) const { return buffer(frame_.rets, i); }
  int64_t results() const { return frame_.rets.size; }

  int32_t compute_type() const { return input(0).dtype == kXlaFloat64 ? kXlaFloat64 : kXlaFloat32; }

  // A buffer of `count` numbers of the compute type.
  void* numbers(const XLA_FFI_Buffer& x, int64_t count) const {
    int64_t found = 1;
    for (int64_t axis = 0; axis < x.rank; ++axis) found *= x.dims[axis];
    if (typed(x, compute_type()).rank < 1 || found != count) fail("a buffer has a wrong size");
    return x.data;
  }

  int64_t lse_count() const { return attention.batch * attention.heads * attention.query_length; }

  // A tensor of the layout with these lengths, heads and features.
  HeedTensor rows(const XLA_FFI_Buffer& x, int64_t length, int64_t heads, int64_t features) const {
    const int64_t wanted[4] = {attention.batch, layout_ == 1 ? heads : length, layout_ == 0 ? heads : length, features};
    const int64_t shortened[3] = {attention.batch, length, features};
    const int64_t rank = additive() ? 3 : 4;
    const int64_t* dims = additive() ? shortened : wanted;
    if (typed(x, input(0).dtype).rank != rank || std::memcmp(x.dims, dims, sizeof(int64_t) * static_cast<size_t>(rank)))
      fail("a tensor does not fit the other ones");
    const int64_t both = length * heads * features;
    return layout_ == 1 ? HeedTensor{x.data, both, features, length * features}
                        : HeedTensor{x.data, both, heads * features, features};
  }

  HeedTensor output(const XLA_FFI_Buffer& x) const {
    return rows(x, attention.query_length, attention.heads, attention.value_dim);
  }

  // As many as XLA's own pool has: one setting for both. 0, all, where there is no pool.
  int threads() const {
    int64_t count = 0;
    XLA_FFI_ThreadPool_NumThreads_Args args{sizeof(args), nullptr, frame_.ctx, &count};
    if (XLA_FFI_Error* error = frame_.api->XLA_FFI_ThreadPool_NumThreads(&args)) {
      XLA_FFI_Error_Destroy_Args destroyed{sizeof(destroyed), nullptr, error};
      frame_.api->XLA_FFI_Error_Destroy(&destroyed);
      return 0;
    }
    return count < 0 ? 0 : static_cast<int>(count < 256 ? count : 256);
  }

  HeedAttention attention{};

 private:
  static const XLA_FFI_Buffer& buffer(const XLA_FFI_Args& list, int64_t i) {
    if (i < 0 || i >= list.size) fail("a buffer is missing");
    return *static_cast<const XLA_FFI_Buffer*>(list.args[i]);
  }

  static const XLA_FFI_Buffer& typed(const XLA_FFI_Buffer& x, int32_t dtype) {
    if (x.dtype != dtype) fail("a buffer has a wrong dtype");
    return x;
  }

  // The structs that an attribute, an array of 8-byte numbers, holds after some to skip.
  template <class Fields>
  std::vector<Fields> attribute(const std::string& name, int32_t dtype, size_t skipped) const {
    constexpr size_t kFields = sizeof(Fields) / 8;
    for (int64_t i = 0; i < frame_.attrs.size; ++i) {
      const XLA_FFI_ByteSpan& found = *frame_.attrs.names[i];
      if (std::string(found.ptr, found.len) != name) continue;
      const auto& array = *static_cast<const XLA_FFI_Array*>(frame_.attrs.attrs[i]);
      if (frame_.attrs.types[i] != kXlaArray || array.dtype != dtype || array.size % kFields != skipped) break;
      std::vector<Fields> result(array.size / kFields);
      if (!result.empty())
        std::memcpy(result.data(), static_cast<const char*>(array.data) + 8 * skipped, sizeof(Fields) * result.size());
      return result;
    }
    fail("the attribute " + name + " is missing or has a wrong type");
  }

  void read_sizes() {
    HeedAttention& a = attention;
    const XLA_FFI_Buffer &query = input(0), &key = input(1), &value = input(2);
    const int64_t rank = additive() ? 3 : 4, length_axis = layout_ == 1 ? 2 : 1, heads_axis = 3 - length_axis;
    for (const XLA_FFI_Buffer* x : {&query, &key, &value})
      if (x->rank != rank) fail("query, key and value must have rank " + std::to_string(rank));
    a.score = additive() ? HEED_ADDITIVE : HEED_DOT_PRODUCT;
    a.dtype = heed_dtype(query.dtype);
    a.batch = query.dims[0], a.query_length = query.dims[length_axis], a.key_length = key.dims[length_axis];
    a.heads = additive() ? 1 : query.dims[heads_axis], a.kv_heads = additive() ? 1 : key.dims[heads_axis];
    a.head_dim = query.dims[rank - 1], a.value_dim = value.dims[rank - 1];
    a.query = rows(query, a.query_length, a.heads, a.head_dim);
    a.key = rows(key, a.key_length, a.kv_heads, a.head_dim);
    a.value = rows(value, a.key_length, a.kv_heads, a.value_dim);
  }

  static int32_t heed_dtype(int32_t dtype) {
    switch (dtype) {
      case kXlaFloat32: return HEED_FLOAT32;
      case kXlaFloat64: return HEED_FLOAT64;
      case kXlaBfloat16: return HEED_BFLOAT16;
      case kXlaFloat16: return HEED_FLOAT16;
      default: fail("query, key and value must be floating-point");
    }
  }

  const void* vector(int64_t length) {
    const auto& x = input(next_++);
    if (x.rank != 1) fail("a vector has a wrong rank");
    return numbers(x, length);
  }

  void add_rule(const RuleRow& row) {
    if (row.kind < 0) {
      attention.alibi_align = integers(row.align);
      return;
    }
    HeedMaskRule rule{};
    rule.kind = static_cast<int32_t>(row.kind);
    rule.left = row.left, rule.right = row.right;
    rule.align = integers(row.align), rule.first = integers(row.first), rule.second = integers(row.second);
    if (row.dense >= 0) rule.dense = scores(input(first_array_ + row.dense), kXlaBool);
    rules_.push_back(rule);
  }

  HeedIntegers integers(int64_t index) const {
    if (index < 0) return {};
    const XLA_FFI_Buffer& x = typed(input(first_number_ + index), kXlaInt32);
    if (x.rank != 2) fail("numbers of a mask must have rank 2");
    return {static_cast<const int32_t*>(x.data), x.dims[0], x.dims[1]};
  }

  static HeedScores scores(const XLA_FFI_Buffer& x, int32_t dtype) {
    if (typed(x, dtype).rank != 4) fail("an array of scores must have rank 4");
    HeedScores result{x.data, {}, {}};
    int64_t stride = 1;
    for (int axis = 3; axis >= 0; --axis) {
      result.shape[axis] = x.dims[axis];
      result.stride[axis] = x.dims[axis] == 1 ? 0 : stride;
      stride *= x.dims[axis];
    }
    return result;
  }

  const XLA_FFI_CallFrame& frame_;
  int layout_ = 0;
  int64_t next_, first_number_ = 0, first_array_ = 0;
  std::vector<HeedMaskRule> rules_;
};

}  // namespace heed::xla
