// Additive attention: splits the work. The split depends on shapes alone, never on the number of threads.
#include <algorithm>
#include <cstring>
#include <vector>

#include "attention.h"
#include "work.h"

namespace heed {
namespace {

// The number of parts of the keys, with at least two blocks each, so that joining them costs little.
int64_t key_parts(const HeedAttention& a, int64_t tasks) {
  return std::max<int64_t>(1, std::min(kPartTasks / tasks, key_blocks(a) / 2));
}

}  // namespace

void additive_forward(const HeedAttention& a, const HeedForward& results, int threads) {
  const int64_t tiles = query_tiles(a), count = a.batch * tiles;
  if (count == 0) return;
  const Kernels& kernels = kernels_for(a);
  threads = useful_threads(threads, forward_work(a));
  const std::vector<uint8_t> finite = scan_finite(a, kernels, threads);
  const int64_t parts = key_parts(a, count);
  threads = limit_threads(threads, count * parts);
  Scratch memory;
  const auto states = memory.plan(parts > 1 ? count * parts : threads, kernels.additive.state_bytes(a));
  const auto scratch = memory.plan(threads, kernels.additive.forward_bytes(a));
  memory.allocate();
  // The last tiles come first: under a causal mask they are the longest.
  auto part_of = [&](int64_t i, int64_t part) {
    return AdditivePart{i % a.batch, tiles - 1 - i / a.batch, part, parts};
  };
  auto combine = [&](int64_t i, char* first) {
    kernels.additive.combine(a, results, part_of(i, 0), first, static_cast<int64_t>(states.bytes));
  };
  for_each(count * parts, threads, [&](int64_t task, int worker) {
    char* own = states[parts > 1 ? task : worker];
    kernels.additive.forward(a, results, finite.data(), part_of(task / parts, task % parts), own, scratch[worker]);
    if (parts == 1) combine(task, own);
  });
  if (parts > 1) for_each(count, threads, [&](int64_t i, int) { combine(i, states[i * parts]); });
}

void additive_backward(const HeedAttention& a, const HeedBackward& pass, int threads) {
  const Kernels& kernels = kernels_for(a);
  if (a.batch == 0) {
    for (void* gradient : {pass.score_vector_gradient, pass.bias_gradient})
      std::memset(gradient, 0, static_cast<size_t>(a.head_dim) * kernels.compute_bytes);
    return;
  }
  threads = useful_threads(threads, backward_work(a));
  const std::vector<uint8_t> finite = scan_finite(a, kernels, threads);
  const int units = kernels.additive.units_row(a.head_dim);
  const KeySums gradients{a, pass, kernels, units};
  const size_t units_bytes = static_cast<size_t>(units) * kernels.compute_bytes;
  const int64_t tiles = query_tiles(a);
  // Few batch entries: their queries are split into parts of at least two tiles, with their own sums, in 64 MiB at
  // most; and if the parts are few, too, their keys.
  const int64_t wanted = std::max<int64_t>(1, std::min(ceil_div(kPartTasks, a.batch), tiles / 2));
  const int64_t parts = parts_within_memory(wanted, a.batch, gradients.bytes);
  const int64_t shares = key_parts(a, a.batch * parts), tasks = a.batch * parts * shares;
  const bool alone = parts == 1 && shares == 1;  // a task has a whole batch entry
  threads = limit_threads(threads, tasks);

  Scratch memory;
  const auto scratch = memory.plan(threads, kernels.additive.backward_bytes(a));
  const auto key_sums = memory.plan(alone ? threads : a.batch * parts, gradients.bytes);
  const auto query_sums =
      memory.plan(shares > 1 ? a.batch * shares : 0, static_cast<size_t>(a.query_length) * units_bytes);
  const auto vector_sums = memory.plan(tasks, 2 * units_bytes);  // of the score vector, then of the bias
  memory.allocate();

  for_each(tasks, threads, [&](int64_t task, int worker) {
    const int64_t share = task % shares, slot = task / shares, b = slot / parts;
    char *keys = key_sums[alone ? worker : slot], *values = keys + gradients.values_at, *vectors = vector_sums[task];
    const AdditiveSums sums{keys, values, shares > 1 ? query_sums[b * shares + share] : nullptr, vectors,
                            vectors + units_bytes};
    std::memset(vectors, 0, vector_sums.bytes);
    for (int64_t j = share * kKeyBlock; j < a.key_length; j += shares * kKeyBlock) {
      const int64_t rows = std::min<int64_t>(kKeyBlock, a.key_length - j);
      auto clear = [&](char* from, int row) {
        const size_t row_bytes = static_cast<size_t>(row) * kernels.compute_bytes;
        std::memset(from + static_cast<size_t>(j) * row_bytes, 0, static_cast<size_t>(rows) * row_bytes);
      };
      clear(keys, units);
      clear(values, gradients.value_row);
    }
    // A part takes every `parts`-th tile: under a causal mask each part gets long and short ones.
    for (int64_t tile = slot % parts; tile < tiles; tile += parts)
      kernels.additive.backward(a, pass, finite.data(), {b, tile, share, shares}, sums, scratch[worker]);
    if (alone) gradients.write(b, 0, a.key_length, keys, 1);
  });
  auto in_chunks = [&](int64_t rows, auto write) {
    const int64_t chunks = ceil_div(rows, kQueryTile);
    for_each(a.batch * chunks, threads, [&](int64_t i, int) {
      const int64_t begin = i % chunks * kQueryTile;
      write(i / chunks, begin, std::min<int64_t>(rows, begin + kQueryTile));
    });
  };
  if (!alone)
    in_chunks(a.key_length, [&](int64_t b, int64_t begin, int64_t end) {
      gradients.write(b, begin, end, key_sums[b * parts], parts);
    });
  if (shares > 1)
    in_chunks(a.query_length, [&](int64_t b, int64_t begin, int64_t end) {
      kernels.write_rows(pass.query_gradient, b, 0, begin, end, a.head_dim, units, query_sums[b * shares], shares,
                         static_cast<int64_t>(query_sums.bytes));
    });
  auto write_vector = [&](void* to, const char* from) {
    kernels.sum_parts(to, a.head_dim, from, tasks, static_cast<int64_t>(vector_sums.bytes));
  };
  write_vector(pass.score_vector_gradient, vector_sums[0]);
  write_vector(pass.bias_gradient, vector_sums[0] + units_bytes);
}

}  // namespace heed
