// The fused row-wise ops of heed.h: checks, and splitting the rows over threads. The split depends on shapes alone.
#include <cinttypes>
#include <cmath>
#include <cstring>

#include "include/heed.h"
#include "refusal.h"
#include "work.h"

namespace heed {
namespace {

void check(const HeedRows& rows, int64_t least_width = 1) {
  require(rows.dtype >= HEED_FLOAT32 && rows.dtype <= HEED_FLOAT16,
          "dtype must be float32, float64, bfloat16 or float16");
  require(rows.count >= 0 && rows.count <= int64_t{1} << 31, "the number of rows must be in [0, 2^31]");
  require(rows.width >= least_width && rows.width <= int64_t{1} << 31, "the width of a row must be in [%d, 2^31]",
          static_cast<int>(least_width));
  require(rows.count == 0 || rows.width <= (int64_t{1} << 59) / rows.count, "there must be at most 2^59 numbers");
}

void require_array(const HeedRows& rows, const void* array, const char* name) {
  require(array || rows.count == 0 || rows.width == 0, "`%s` is missing", name);
}

// Calls function(begin, end) for all rows, some at a time.
template <class Function>
void for_rows(const HeedRows& rows, int threads, const Function& function) {
  const int64_t each = std::max<int64_t>(1, kTaskNumbers / std::max<int64_t>(1, rows.width)),
                tasks = ceil_div(rows.count, each);
  for_each(tasks, limit_threads(threads, tasks),
           [&](int64_t task, int) { function(task * each, std::min(rows.count, (task + 1) * each)); });
}

void check(const HeedCrossEntropy& c) {
  check(c.rows);
  require(c.smoothing >= 0 && c.smoothing < 1, "smoothing must be in [0, 1)");
  require_array(c.rows, c.logits, "logits");
  require_array(c.rows, c.labels, "labels");
  const bool ignores = c.ignored != HEED_NO_LABEL;
  for (int64_t r = 0; r < c.rows.count; ++r)
    require((c.labels[r] >= 0 && c.labels[r] < c.rows.width) || (ignores && c.labels[r] == c.ignored),
            "`labels` must be in [0, %" PRId64 "), or `ignore_class`. Received: labels with %d", c.rows.width,
            static_cast<int>(c.labels[r]));
}

void check(const HeedNormalization& n) {
  check(n.rows);
  require_array(n.rows, n.x, "x");
  require(n.epsilon > 0 && std::isfinite(n.epsilon), "epsilon must be a finite number above 0");
  require(n.rows.dtype == HEED_FLOAT64 || (n.epsilon >= 1e-30 && n.epsilon <= 1e30),
          "epsilon must be in [1e-30, 1e30], or in float64");
}

// Gradients of x, scale and offset. Each part of the rows has its own sums for the last two, added up in the order of
// the parts, whose number depends on the shape alone.
void normalization_gradient(const HeedNormalization& n, const void* moments, const void* y_gradient, void* x_gradient,
                            void* scale_gradient, void* offset_gradient, int threads) {
  const RowKernels& kernels = kernels_for(n.rows);
  auto some_rows = [&](char* sums, int64_t distance, int64_t begin, int64_t end) {
    kernels.normalization_gradient(n, moments, y_gradient, x_gradient, sums, distance, begin, end);
  };
  if (!scale_gradient && !offset_gradient)
    return for_rows(n.rows, threads, [&](int64_t begin, int64_t end) { some_rows(nullptr, 0, begin, end); });

  const int64_t number_bytes = n.rows.dtype == HEED_FLOAT64 ? 8 : 4;
  const size_t bytes = whole_lines(static_cast<size_t>(n.rows.width * number_bytes));
  const int64_t wanted = ceil_div(n.rows.count, std::max(kLeastRows, kTaskNumbers / n.rows.width));
  const int64_t parts = parts_within_memory(std::max<int64_t>(1, std::min(kRowParts, wanted)), 2, bytes);
  const int64_t each = ceil_div(n.rows.count, parts), distance = static_cast<int64_t>(bytes) / number_bytes;
  Scratch memory;
  const auto sums = memory.plan(parts, 2 * bytes);
  memory.allocate();
  for_each(parts, limit_threads(threads, parts), [&](int64_t part, int) {
    std::memset(sums[part], 0, sums.bytes);
    some_rows(sums[part], distance, part * each, std::min(n.rows.count, (part + 1) * each));
  });
  auto write = [&](void* to, const char* from) {
    if (to) kernels.sum_parts(to, n.rows.width, from, parts, static_cast<int64_t>(sums.bytes));
  };
  write(scale_gradient, sums[0]);
  write(offset_gradient, sums[0] + bytes);
}

void check(const HeedDropout& d) {
  check(d.rows, 0);
  require_array(d.rows, d.x, "x");
  require(d.rate >= 0 && d.rate < 1, "rate must be in [0, 1)");
}

void check(const HeedProduct& p) {
  check(p.rows);
  require(p.rows.count <= HEED_FEW_ROWS, "there must be at most %d rows", HEED_FEW_ROWS);
  const int64_t most = int64_t{1} << 31, numbers = int64_t{1} << 59;
  require(p.groups >= 1 && p.groups <= most && p.columns >= 1 && p.columns <= most,
          "groups and columns must be in [1, 2^31]");
  require(p.groups <= numbers / p.columns / p.rows.width && p.groups * p.columns <= numbers / HEED_FEW_ROWS,
          "there must be at most 2^59 numbers");
  require_array(p.rows, p.x, "x");
  require_array(p.rows, p.weights, "weights");
}

// A task computes some columns of one group, whatever the number of threads is.
void product(const HeedProduct& p, void* y, int threads) {
  const RowKernels& kernels = kernels_for(p.rows);
  if (p.rows.count == 0) return;
  // Numbers read from memory, see forward_work.
  const double work =
      8.0 * static_cast<double>(p.groups) * static_cast<double>(p.columns) * static_cast<double>(p.rows.width);
  const int64_t parts = ceil_div(p.columns, kProductColumns), tasks = p.groups * parts;
  const int workers = limit_threads(useful_threads(threads, work), tasks);
  Scratch memory;
  const auto scratch = memory.plan(workers, kernels.few_rows_bytes(p));
  memory.allocate();
  for_each(tasks, workers, [&](int64_t task, int worker) {
    const int64_t begin = task % parts * kProductColumns;
    kernels.few_rows(p, y, task / parts, begin, std::min(p.columns, begin + kProductColumns), scratch[worker]);
  });
}

void check(const HeedCacheWrite& c) {
  const int64_t numbers = int64_t{1} << 59;
  require(c.batch >= 0 && c.length >= 0 && c.bytes >= 0 && c.written >= 0 && c.written <= c.length,
          "the new positions must be as many as fit into the cache, [0, L]");
  require(c.bytes <= numbers && c.length <= numbers / std::max<int64_t>(1, c.bytes) &&
              c.batch <= numbers / std::max<int64_t>(1, c.length * c.bytes),
          "there must be at most 2^59 bytes");
  const bool empty = c.batch == 0 || c.length == 0 || c.bytes == 0;
  require(c.cache || empty, "`cache` is missing");
  require(c.update || empty || c.written == 0, "`update` is missing");
}

void cache_write(const HeedCacheWrite& c, void* result) {
  const auto size = [](int64_t n) { return static_cast<size_t>(n); };
  const int64_t index = std::max<int64_t>(0, std::min(c.index, c.length - c.written));
  const char* update = static_cast<const char*>(c.update);
  char* to = static_cast<char*>(result);
  if (result != c.cache && c.batch * c.length * c.bytes > 0)
    std::memcpy(to, c.cache, size(c.batch * c.length * c.bytes));
  if (c.written * c.bytes == 0) return;
  for (int64_t b = 0; b < c.batch; ++b)
    std::memcpy(to + (b * c.length + index) * c.bytes, update + b * c.written * c.bytes, size(c.written * c.bytes));
}

// Checks a call, then calls work(threads).
template <class Call, class Work>
const char* check_and_run(const Call& call, int threads, const Work& work) {
  return catch_refusal("out of memory for sums", [&] {
    check(call);
    work(cap_threads(threads));
  });
}

}  // namespace
}  // namespace heed

const char* heed_cross_entropy(const HeedCrossEntropy* call, void* losses, void* softmax, int threads) {
  return heed::check_and_run(*call, threads, [&](int limit) {
    heed::require_array(call->rows, losses, "losses");
    heed::require_array(call->rows, softmax, "softmax");
    const auto run = heed::kernels_for(call->rows).cross_entropy;
    heed::for_rows(call->rows, limit, [&](int64_t begin, int64_t end) { run(*call, losses, softmax, begin, end); });
  });
}

const char* heed_cross_entropy_gradient(const HeedCrossEntropy* call, const void* softmax, const void* losses_gradient,
                                        void* logits_gradient, int threads) {
  return heed::check_and_run(*call, threads, [&](int limit) {
    heed::require_array(call->rows, softmax, "softmax");
    heed::require_array(call->rows, losses_gradient, "losses_gradient");
    heed::require_array(call->rows, logits_gradient, "logits_gradient");
    const auto run = heed::kernels_for(call->rows).cross_entropy_gradient;
    heed::for_rows(call->rows, limit, [&](int64_t begin, int64_t end) {
      run(*call, softmax, losses_gradient, logits_gradient, begin, end);
    });
  });
}

const char* heed_normalization(const HeedNormalization* call, void* y, void* moments, int threads) {
  return heed::check_and_run(*call, threads, [&](int limit) {
    heed::require_array(call->rows, y, "y");
    heed::require_array(call->rows, moments, "moments");
    const auto run = heed::kernels_for(call->rows).normalization;
    heed::for_rows(call->rows, limit, [&](int64_t begin, int64_t end) { run(*call, y, moments, begin, end); });
  });
}

const char* heed_normalization_gradient(const HeedNormalization* call, const void* moments, const void* y_gradient,
                                        void* x_gradient, void* scale_gradient, void* offset_gradient, int threads) {
  return heed::check_and_run(*call, threads, [&](int limit) {
    heed::require_array(call->rows, moments, "moments");
    heed::require_array(call->rows, y_gradient, "y_gradient");
    heed::require_array(call->rows, x_gradient, "x_gradient");
    heed::normalization_gradient(*call, moments, y_gradient, x_gradient, scale_gradient, offset_gradient, limit);
  });
}

const char* heed_dropout(const HeedDropout* call, void* y, int threads) {
  return heed::check_and_run(*call, threads, [&](int limit) {
    heed::require_array(call->rows, y, "y");
    const auto run = heed::kernels_for(call->rows).dropout;
    heed::for_rows(call->rows, limit, [&](int64_t begin, int64_t end) { run(*call, y, begin, end); });
  });
}

const char* heed_product(const HeedProduct* call, void* y, int threads) {
  return heed::check_and_run(*call, threads, [&](int limit) {
    heed::require_array(call->rows, y, "y");
    heed::product(*call, y, limit);
  });
}

const char* heed_cache_write(const HeedCacheWrite* call, void* result) {
  return heed::check_and_run(*call, 1, [&](int) {
    heed::require(result || call->batch == 0 || call->length == 0 || call->bytes == 0, "`result` is missing");
    heed::cache_write(*call, result);
  });
}
