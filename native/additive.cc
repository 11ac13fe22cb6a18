// Additive attention: splits the work. The split depends on the shapes alone, never on the number of threads.
#include <algorithm>
#include <cstring>
#include <vector>

#include "attention.h"
#include "instruction_sets.h"
#include "work.h"

namespace heed {
namespace {

constexpr int64_t kTasks = 16;  // so many keep the threads of most machines busy

// Into how many parts the keys go where there are only so many tasks: with two blocks each, joining costs little.
int64_t key_parts(const HeedAttention& a, int64_t tasks) {
  return std::max<int64_t>(1, std::min(kTasks / tasks, key_blocks(a) / 2));
}

}  // namespace

const char* additive_forward(const HeedAttention& a, const HeedForward& results, int threads) {
  const int64_t tiles = query_tiles(a), count = a.batch * tiles;
  if (count == 0) return nullptr;
  const Kernels& kernels = kernels_for(a);
  std::vector<uint8_t> finite;
  scan(a, kernels, threads, &finite);
  const int64_t parts = key_parts(a, count);
  threads = at_most(threads, count * parts);
  const size_t state_bytes = kernels.additive.state_bytes(a);
  const size_t scratch_bytes = kernels.additive.forward_bytes(a);
  const size_t states = static_cast<size_t>(parts > 1 ? count * parts : threads);
  const Memory memory = allocate(state_bytes * states + scratch_bytes * static_cast<size_t>(threads));
  if (!memory) return kNoMemory;
  auto state = [&](int64_t i) { return memory.get() + state_bytes * static_cast<size_t>(i); };
  // The last tiles first: under a causal mask they are the longest.
  auto part_of = [&](int64_t i, int64_t part) {
    return AdditivePart{i % a.batch, tiles - 1 - i / a.batch, part, parts};
  };
  const int64_t distance = static_cast<int64_t>(state_bytes);
  for_each(count * parts, threads, [&](int64_t task, int worker) {
    const AdditivePart part = part_of(task / parts, task % parts);
    char* own = state(parts > 1 ? task : worker);
    kernels.additive.forward(a, finite.data(), part, own,
                             state(static_cast<int64_t>(states)) + scratch_bytes * static_cast<size_t>(worker));
    if (parts == 1) kernels.additive.combine(a, results, part, own, distance);
  });
  if (parts > 1)
    for_each(count, threads,
             [&](int64_t i, int) { kernels.additive.combine(a, results, part_of(i, 0), state(i * parts), distance); });
  return nullptr;
}

const char* additive_backward(const HeedAttention& a, const HeedBackward& pass, int threads) {
  const Kernels& kernels = kernels_for(a);
  if (a.batch == 0) {
    for (void* gradient : {pass.score_vector_gradient, pass.bias_gradient})
      std::memset(gradient, 0, static_cast<size_t>(a.head_dim) * kernels.compute_bytes);
    return nullptr;
  }
  std::vector<uint8_t> finite;
  scan(a, kernels, threads, &finite);
  const int units = kernels.additive.units_row(a.head_dim);
  const int value_row = kernels.gradient_row(a.value_dim);
  const int64_t tiles = query_tiles(a);
  auto bytes_of = [&](int64_t numbers) { return in_cache_lines(static_cast<size_t>(numbers) * kernels.compute_bytes); };
  const size_t key_bytes = bytes_of(a.key_length * units), value_bytes = bytes_of(a.key_length * value_row);
  const size_t query_bytes = bytes_of(a.query_length * units), vector_bytes = bytes_of(units);
  const size_t sum_bytes = key_bytes + value_bytes;
  // Few batch entries: their queries go into parts, of two tiles at least, with sums of their own, as far as 64 MiB
  // go; and if these are few too, their keys.
  const int64_t wanted = std::max<int64_t>(1, std::min(ceil_div(kTasks, a.batch), tiles / 2));
  const int64_t parts = parts_within_memory(wanted, a.batch, sum_bytes);
  const int64_t shares = key_parts(a, a.batch * parts), tasks = a.batch * parts * shares;
  const bool alone = parts == 1 && shares == 1;  // a task has all of its batch entry
  threads = at_most(threads, tasks);

  const size_t scratch_bytes = kernels.additive.backward_bytes(a);
  const size_t scratch = scratch_bytes * static_cast<size_t>(threads);
  const size_t key_sums = sum_bytes * static_cast<size_t>(alone ? threads : a.batch * parts);
  const size_t query_sums = shares > 1 ? query_bytes * static_cast<size_t>(a.batch * shares) : 0;
  const Memory memory = allocate(scratch + key_sums + query_sums + 2 * vector_bytes * static_cast<size_t>(tasks));
  if (!memory) return kNoMemory;
  char *const keys_at = memory.get() + scratch, *const queries_at = keys_at + key_sums;
  char* const vectors_at = queries_at + query_sums;

  const int64_t distance = static_cast<int64_t>(sum_bytes), query_distance = static_cast<int64_t>(query_bytes);
  auto write_keys = [&](int64_t b, int64_t begin, int64_t end, const char* from) {
    kernels.write_rows(pass.key_gradient, b, 0, begin, end, a.head_dim, units, from, parts, distance);
    kernels.write_rows(pass.value_gradient, b, 0, begin, end, a.value_dim, value_row, from + key_bytes, parts,
                       distance);
  };
  for_each(tasks, threads, [&](int64_t task, int worker) {
    const int64_t share = task % shares, slot = task / shares, b = slot / parts;
    char* keys = keys_at + sum_bytes * static_cast<size_t>(alone ? worker : slot);
    char* vectors = vectors_at + 2 * vector_bytes * static_cast<size_t>(task);
    const AdditiveSums sums{keys, keys + key_bytes,
                            shares > 1 ? queries_at + query_bytes * static_cast<size_t>(b * shares + share) : nullptr,
                            vectors, vectors + vector_bytes};
    std::memset(vectors, 0, 2 * vector_bytes);
    for (int64_t j = share * kKeyBlock; j < a.key_length; j += shares * kKeyBlock) {
      const int64_t rows = std::min<int64_t>(kKeyBlock, a.key_length - j);
      auto clear = [&](char* from, int row) {
        const size_t row_bytes = static_cast<size_t>(row) * kernels.compute_bytes;
        std::memset(from + static_cast<size_t>(j) * row_bytes, 0, static_cast<size_t>(rows) * row_bytes);
      };
      clear(keys, units);
      clear(keys + key_bytes, value_row);
    }
    // Every `parts`-th tile: under a causal mask each part gets long and short ones.
    for (int64_t tile = slot % parts; tile < tiles; tile += parts)
      kernels.additive.backward(a, pass, finite.data(), {b, tile, share, shares}, sums,
                                memory.get() + scratch_bytes * static_cast<size_t>(worker));
    if (alone) write_keys(b, 0, a.key_length, keys);
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
      write_keys(b, begin, end, keys_at + sum_bytes * static_cast<size_t>(b * parts));
    });
  if (shares > 1)
    in_chunks(a.query_length, [&](int64_t b, int64_t begin, int64_t end) {
      kernels.write_rows(pass.query_gradient, b, 0, begin, end, a.head_dim, units,
                         queries_at + query_bytes * static_cast<size_t>(b * shares), shares, query_distance);
    });
  HeedAttention compute = a;
  compute.dtype = a.dtype == HEED_FLOAT64 ? HEED_FLOAT64 : HEED_FLOAT32;
  auto write_vector = [&](void* to, const char* from) {
    kernels_for(compute).write_rows({to, 0, 0, 0}, 0, 0, 0, 1, a.head_dim, units, from, tasks,
                                    static_cast<int64_t>(2 * vector_bytes));
  };
  write_vector(pass.score_vector_gradient, vectors_at);
  write_vector(pass.bias_gradient, vectors_at + vector_bytes);
  return nullptr;
}

}  // namespace heed
