// Dot-product attention: splits the work. The split depends on the shapes alone, never on the number of threads.
#include "attention.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "instruction_sets.h"
#include "work.h"

namespace heed {
namespace {

// Few queries: the keys are split as well, into stretches so short that the pages of memory which all heads share are
// still at hand when the next head comes.
const char* decode(const HeedAttention& a, const HeedForward& results, const Kernels& kernels, int threads) {
  constexpr int64_t kStretch = 4;  // blocks
  const int64_t all_kv_heads = a.batch * a.kv_heads, blocks = key_blocks(a);
  const int64_t each = std::max(std::min(kStretch, ceil_div(blocks * all_kv_heads, 32)), ceil_div(blocks, kMaxSplits));
  const int64_t splits = ceil_div(blocks, each);
  threads = at_most(threads, all_kv_heads * splits);
  const size_t scratch = kernels.decode_bytes(a), split_bytes = kernels.split_bytes(a);
  const size_t all_scratch = scratch * static_cast<size_t>(threads);
  const Memory memory = allocate(all_scratch + split_bytes * static_cast<size_t>(all_kv_heads * splits));
  if (!memory) return kNoMemory;
  const auto splits_of = [&](int64_t bk) {
    return memory.get() + all_scratch + split_bytes * static_cast<size_t>(bk * splits);
  };
  for_each(all_kv_heads * splits, threads, [&](int64_t index, int worker) {
    const int64_t kv_head = index % a.kv_heads, split = index / a.kv_heads % splits, b = index / a.kv_heads / splits;
    kernels.decode(a, b, kv_head, split * each, std::min((split + 1) * each, blocks),
                   splits_of(b * a.kv_heads + kv_head) + split_bytes * static_cast<size_t>(split),
                   memory.get() + scratch * static_cast<size_t>(worker));
  });
  for (int64_t bk = 0; bk < all_kv_heads; ++bk)
    kernels.combine_splits(a, results, bk / a.kv_heads, bk % a.kv_heads, splits_of(bk), splits);
  return nullptr;
}

}  // namespace

const char* dot_forward(const HeedAttention& a, const HeedForward& results, int threads) {
  if (a.batch == 0 || a.heads == 0 || a.query_length == 0) return nullptr;
  const Kernels& kernels = kernels_for(a);
  if (few_queries(a)) return decode(a, results, kernels, threads);
  std::vector<uint8_t> finite;
  scan(a, kernels, threads, &finite);
  const int64_t tiles = query_tiles(a), heads = a.batch * a.heads;
  threads = at_most(threads, tiles * heads);
  const size_t bytes = kernels.forward_bytes(a);
  const Memory memory = allocate(bytes * static_cast<size_t>(threads));
  if (!memory) return kNoMemory;
  const size_t packed_bytes = kernels.packed_bytes(a);
  const Memory packed = packed_bytes ? allocate(packed_bytes) : nullptr;
  if (packed_bytes) {
    if (!packed) return kNoMemory;
    const int64_t blocks = key_blocks(a);
    for_each(a.batch * a.kv_heads * blocks, threads, [&](int64_t index, int) {
      const int64_t bk = index / blocks;
      kernels.pack(a, finite.data(), bk / a.kv_heads, bk % a.kv_heads, index % blocks, packed.get());
    });
  }
  for_each(tiles * heads, threads, [&](int64_t index, int worker) {
    // The last tiles first: under a causal mask they are the longest.
    const int64_t tile = tiles - 1 - index / heads, head = index % heads;
    kernels.forward(a, results, finite.data(), packed.get(), head / a.heads, head % a.heads, tile,
                    memory.get() + bytes * static_cast<size_t>(worker));
  });
  return nullptr;
}

const char* dot_backward(const HeedAttention& a, const HeedBackward& pass, int threads) {
  if (a.batch == 0 || a.kv_heads == 0) return nullptr;
  const Kernels& kernels = kernels_for(a);
  std::vector<uint8_t> finite;
  scan(a, kernels, threads, &finite);
  const int64_t tiles = query_tiles(a), queries_per_kv = a.heads / a.kv_heads;
  const int key_row = kernels.gradient_row(a.head_dim), value_row = kernels.gradient_row(a.value_dim);
  const size_t key_bytes = in_cache_lines(static_cast<size_t>(a.key_length * key_row) * kernels.compute_bytes);
  const size_t value_bytes = in_cache_lines(static_cast<size_t>(a.key_length * value_row) * kernels.compute_bytes);
  const size_t sum_bytes = key_bytes + value_bytes;
  // Few key heads: their queries are split into parts with sums of their own, as far as 64 MiB go.
  const int64_t all_kv_heads = a.batch * a.kv_heads, pieces = std::max<int64_t>(1, queries_per_kv * tiles);
  const int64_t parts = parts_within_memory(std::min(ceil_div(16, all_kv_heads), pieces), all_kv_heads, sum_bytes);
  const int64_t tasks = all_kv_heads * parts;
  threads = at_most(threads, tasks);
  const size_t bytes = kernels.backward_bytes(a);
  const size_t scratch = bytes * static_cast<size_t>(threads);
  const int64_t sums = parts > 1 ? tasks : threads;
  const Memory memory = allocate(scratch + sum_bytes * static_cast<size_t>(sums));
  if (!memory) return kNoMemory;

  auto write = [&](int64_t bk, const char* from, int64_t count) {
    const int64_t b = bk / a.kv_heads, kv_head = bk % a.kv_heads, distance = static_cast<int64_t>(sum_bytes);
    kernels.write_rows(pass.key_gradient, b, kv_head, 0, a.key_length, a.head_dim, key_row, from, count, distance);
    kernels.write_rows(pass.value_gradient, b, kv_head, 0, a.key_length, a.value_dim, value_row, from + key_bytes,
                       count, distance);
  };
  for_each(tasks, threads, [&](int64_t task, int worker) {
    const int64_t bk = task / parts, part = task % parts;
    const int64_t b = bk / a.kv_heads, kv_head = bk % a.kv_heads;
    char* sum = memory.get() + scratch + sum_bytes * static_cast<size_t>(parts > 1 ? task : worker);
    std::memset(sum, 0, sum_bytes);
    // Every `parts`-th tile: under a causal mask each part gets long and short ones.
    kernels.backward(a, pass, finite.data(), b, kv_head, part, parts, sum, sum + key_bytes,
                     memory.get() + bytes * static_cast<size_t>(worker));
    if (parts == 1) write(bk, sum, 1);
  });
  if (parts > 1)
    for_each(all_kv_heads, threads, [&](int64_t bk, int) {
      write(bk, memory.get() + scratch + sum_bytes * static_cast<size_t>(bk * parts), parts);
    });
  return nullptr;
}

const char* dot_bias_gradient(const HeedAttention& a, const HeedBackward& pass, int threads) {
  const Kernels& kernels = kernels_for(a);
  int64_t stride[4], numbers = 1;  // of the gradient; 0 along axes that broadcast
  for (int axis = 3; axis >= 0; --axis) {
    stride[axis] = a.bias.shape[axis] == 1 ? 0 : numbers;
    numbers *= a.bias.shape[axis];
  }
  if (numbers == 0) return nullptr;
  std::memset(pass.bias_gradient, 0, static_cast<size_t>(numbers) * kernels.compute_bytes);
  if (a.batch == 0 || a.heads == 0 || a.query_length == 0 || a.key_length == 0) return nullptr;
  std::vector<uint8_t> finite;
  scan(a, kernels, threads, &finite);
  // One task for each part of the result that no other writes to; along an axis that broadcasts it takes all.
  const int64_t tiles = query_tiles(a);
  const int64_t batches = stride[0] ? a.batch : 1, heads = stride[1] ? a.heads : 1, rows = stride[2] ? tiles : 1;
  const int64_t tasks = batches * heads * rows;
  threads = at_most(threads, tasks);
  const size_t scratch = kernels.backward_bytes(a);
  const Memory memory = allocate(scratch * static_cast<size_t>(threads));
  if (!memory) return kNoMemory;
  for_each(tasks, threads, [&](int64_t task, int worker) {
    // The last tiles first: under a causal mask they are the longest.
    const int64_t tile = rows - 1 - task / (batches * heads), head = task % heads, batch = task / heads % batches;
    const TileRange range{stride[0] ? batch : 0, stride[0] ? batch + 1 : a.batch,
                          stride[1] ? head : 0,  stride[1] ? head + 1 : a.heads,
                          stride[2] ? tile : 0,  stride[2] ? tile + 1 : tiles};
    kernels.bias_gradient(a, pass, finite.data(), range, stride, memory.get() + scratch * static_cast<size_t>(worker));
  });
  return nullptr;
}

}  // namespace heed
