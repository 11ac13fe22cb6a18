// Dropout of rows, plus a residual if there is one. The mask is that of attention's dropout in head 0 of batch entry 0,
// with rows for queries and columns for keys. It is never stored: the gradient of x is the dropout of the gradient of
// y.
#pragma once

#include "rows.h"
#include "scores.h"

namespace heed {
namespace HEED_ISA {

template <class Stored>
void dropout(const HeedDropout& d, void* y, int64_t begin, int64_t end) {
  typedef typename Compute<Stored>::Type Real;
  typedef Vector<Real> V;
  constexpr int kColumns = 1024;  // at a time: their hashes serve all rows
  uint32_t columns[kColumns];
  Real factors[kColumns] = {};
  const int64_t width = d.rows.width;
  const uint32_t head = Dropout::head_of(d.seed, 0, 0), threshold = Dropout::threshold_of(d.rate);
  const Real kept = static_cast<Real>(1 / (1 - d.rate));
  for (int64_t from = 0; from < width; from += kColumns) {
    const int together = static_cast<int>(min(kColumns, width - from));
    for (int c = 0; c < together; ++c) columns[c] = Dropout::column_of(from + c);
    for (int64_t r = begin; r < end; ++r) {
      const uint32_t row = Dropout::mix(head ^ static_cast<uint32_t>(r));
      for (int c = 0; c < together; ++c) factors[c] = Dropout::half_mix(row ^ columns[c]) >= threshold ? kept : Real(0);
      const int64_t at = r * width + from;
      const Stored* x = static_cast<const Stored*>(d.x) + at;
      const Stored* residual = d.residual ? static_cast<const Stored*>(d.residual) + at : nullptr;
      Stored* to = static_cast<Stored*>(y) + at;
      for_each_vector<Real>(0, together, [&](int64_t c, int count) {
        const V factor = load(factors + c), rest = residual ? load_some(residual + c, count) : V{};
        store_some(to + c, count, factor == 0 ? rest : rest + load_some(x + c, count) * factor);
      });
    }
  }
}

}  // namespace HEED_ISA
}  // namespace heed
