// The numbers that ops take in one tensor. Each struct names the numbers of one tensor, in order; wire.py and rows.py
// in src/heed/ops/backends/tensorflow/native/ have tuples of the same names and fields.
#pragma once

#include <algorithm>
#include <cstring>

#include "tensors.h"

namespace heed::tf {

// `settings`, double. Flags are 0 or 1; `threads` 0: as many as there are.
struct AttentionSettings {
  double scale, soft_cap, dropout, has_bias, has_slopes, threads;
};
struct CrossEntropySettings {
  double threads, ignored;
};
struct NormalizationSettings {
  double threads, epsilon, rms;
};
struct DropoutSettings {
  double threads, rate;
};
struct ProductSettings {
  double threads, transposed;
};

// A row of `rules`, int64. The last four are indices: of `numbers`, `dense` of `arrays`; -1: none.
struct RuleRow {
  int64_t kind, left, right, align, first, second, dense;
};

// All fields are of 8 bytes.
template <class Fields>
inline constexpr int64_t kFieldCount = sizeof(Fields) / 8;

template <class Fields>
Fields read_fields(const void* numbers) {
  Fields fields;
  std::memcpy(&fields, numbers, sizeof(Fields));
  return fields;
}

template <class Settings>
Settings read_settings(const Tensor& x) {
  if (x.dims() != Dims{kFieldCount<Settings>}) fail("`settings` must have as many numbers as the op lists");
  return read_fields<Settings>(x.data());
}

inline int thread_count(double threads) { return threads >= 1 ? static_cast<int>(std::min(threads, 65536.0)) : 0; }

}  // namespace heed::tf
