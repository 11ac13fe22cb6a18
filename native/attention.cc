// Dot-product attention: splits the work. The split depends on shapes alone, never on the number of threads.
#include "attention.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "capture_gradients.h"
#include "work.h"

namespace heed {
namespace {

// Few queries: the keys are split, too.
void decode(const HeedAttention& a, const HeedForward& results, const Kernels& kernels, int threads) {
  const int64_t all_kv_heads = a.batch * a.kv_heads, blocks = key_blocks(a);
  const int64_t each =
      std::max(std::min(kSplitBlocks, ceil_div(blocks * all_kv_heads, kSplitTasks)), ceil_div(blocks, kMaxSplits));
  const int64_t splits = ceil_div(blocks, each);
  threads = limit_threads(threads, all_kv_heads * splits);
  Scratch memory;
  const auto scratch = memory.plan(threads, kernels.decode_bytes(a));
  const auto states = memory.plan(all_kv_heads * splits, kernels.split_bytes(a));
  memory.allocate();
  for_each(all_kv_heads * splits, threads, [&](int64_t index, int worker) {
    const int64_t kv_head = index % a.kv_heads, split = index / a.kv_heads % splits, b = index / a.kv_heads / splits;
    kernels.decode(a, b, kv_head, split * each, std::min((split + 1) * each, blocks),
                   states[(b * a.kv_heads + kv_head) * splits + split], scratch[worker]);
  });
  for (int64_t bk = 0; bk < all_kv_heads; ++bk)
    kernels.combine_splits(a, results, bk / a.kv_heads, bk % a.kv_heads, states[bk * splits], splits);
}

}  // namespace

void dot_forward(const HeedAttention& a, const HeedForward& results, int threads) {
  if (a.batch == 0 || a.heads == 0 || a.query_length == 0) return;
  const Kernels& kernels = kernels_for(a);
  threads = useful_threads(threads, forward_work(a));
  if (few_queries(a)) return decode(a, results, kernels, threads);
  const int64_t tiles = query_tiles(a), heads = a.batch * a.heads;
  threads = limit_threads(threads, tiles * heads);
  const size_t packed_bytes = kernels.packed_bytes(a);
  // Packing values needs to know which are not finite; other kernels search only if a result is not finite.
  const std::vector<uint8_t> flags = packed_bytes ? scan_finite(a, kernels, threads) : std::vector<uint8_t>();
  const uint8_t* finite = packed_bytes ? flags.data() : nullptr;
  Scratch memory;
  const auto scratch = memory.plan(threads, kernels.forward_bytes(a)), packed = memory.plan(1, packed_bytes);
  memory.allocate();
  if (packed_bytes) {
    const int64_t blocks = key_blocks(a);
    for_each(a.batch * a.kv_heads * blocks, threads, [&](int64_t index, int) {
      const int64_t bk = index / blocks;
      kernels.pack(a, finite, bk / a.kv_heads, bk % a.kv_heads, index % blocks, packed[0]);
    });
  }
  for_each(tiles * heads, threads, [&](int64_t index, int worker) {
    // One head after another: its keys and values stay in the second-level cache. The last tiles come first: under a
    // causal mask they are the longest.
    const int64_t tile = tiles - 1 - index % tiles, head = index / tiles;
    kernels.forward(a, results, finite, packed[0], head / a.heads, head % a.heads, tile, scratch[worker]);
  });
}

void dot_backward(const HeedAttention& a, const HeedBackward& pass, int threads) {
  const Kernels& kernels = kernels_for(a);
  threads = useful_threads(threads, backward_work(a));
  std::optional<CaptureGradients> captured;
  if (a.program && pass.capture_gradients) captured.emplace(a, pass, kernels, threads);
  if (a.batch == 0 || a.kv_heads == 0 || (a.query_length == 0 && a.key_length == 0)) {
    if (captured) captured->write_zeros();
    return;
  }
  const std::vector<uint8_t> finite = scan_finite(a, kernels, threads);
  const KeySums gradients{a, pass, kernels, kernels.gradient_row(a.head_dim)};
  // Few key heads: their queries are split into parts with their own sums, in 64 MiB at most.
  const int64_t all_kv_heads = a.batch * a.kv_heads;
  const int64_t head_tiles = std::max<int64_t>(1, a.heads / a.kv_heads * query_tiles(a));
  const int64_t parts =
      parts_within_memory(std::min(ceil_div(kPartTasks, all_kv_heads), head_tiles), all_kv_heads, gradients.bytes);
  const int64_t tasks = all_kv_heads * parts;
  threads = limit_threads(threads, tasks);
  const int64_t queries_per_kv = a.heads / a.kv_heads, tiles = query_tiles(a);
  TaskGroups groups(tasks);
  if (captured)
    captured->plan(&groups, [&](const Unit& unit) {
      const int64_t bk = unit.b * a.kv_heads + unit.n / queries_per_kv;
      return bk * parts + (unit.n % queries_per_kv * tiles + unit.tile) % parts;
    });
  Scratch memory;
  const auto scratch = memory.plan(threads, kernels.backward_bytes(a));
  const auto sums = memory.plan(parts > 1 ? tasks : threads, gradients.bytes);
  memory.allocate();
  groups.run(threads, [&](int64_t task, int worker) {
    const int64_t bk = task / parts, part = task % parts;
    char* own = sums[parts > 1 ? task : worker];
    std::memset(own, 0, gradients.bytes);
    const std::vector<CaptureSum> capture_sums = captured ? captured->sums_of(task) : std::vector<CaptureSum>();
    // A part takes every `parts`-th tile: under a causal mask each part gets long and short ones.
    kernels.backward(a, pass, finite.data(), bk / a.kv_heads, bk % a.kv_heads, part, parts, own,
                     own + gradients.values_at, captured ? capture_sums.data() : nullptr, scratch[worker]);
    if (parts == 1) gradients.write(bk, 0, a.key_length, own, 1);
  });
  if (parts > 1)
    for_each(all_kv_heads, threads,
             [&](int64_t bk, int) { gradients.write(bk, 0, a.key_length, sums[bk * parts], parts); });
  if (!captured) return;
  captured->write();
  if (captured->any()) captured->compute(finite.data());
}

void dot_bias_gradient(const HeedAttention& a, const HeedBackward& pass, int threads) {
  const Kernels& kernels = kernels_for(a);
  if (std::count(a.bias.shape, a.bias.shape + 4, 0) > 0) return;
  int64_t stride[4], numbers = 1;  // of the gradient; 0 along axes that broadcast
  for (int axis = 3; axis >= 0; --axis) {
    stride[axis] = a.bias.shape[axis] == 1 ? 0 : numbers;
    numbers *= a.bias.shape[axis];
  }
  threads = useful_threads(threads, backward_work(a));
  set_zeros(pass.bias_gradient, numbers * static_cast<int64_t>(kernels.compute_bytes), threads);
  if (a.batch == 0 || a.heads == 0 || a.query_length == 0 || a.key_length == 0) return;
  const std::vector<uint8_t> finite = scan_finite(a, kernels, threads);
  // Each task owns a part of the result: all of an axis that broadcasts, one entry of the others.
  const int64_t tiles = query_tiles(a);
  const int64_t batches = stride[0] ? a.batch : 1, heads = stride[1] ? a.heads : 1, rows = stride[2] ? tiles : 1;
  const int64_t tasks = batches * heads * rows;
  threads = limit_threads(threads, tasks);
  Scratch memory;
  const auto scratch = memory.plan(threads, kernels.backward_bytes(a));
  memory.allocate();
  for_each(tasks, threads, [&](int64_t task, int worker) {
    // The last tiles come first: under a causal mask they are the longest.
    const int64_t tile = rows - 1 - task / (batches * heads), head = task % heads, batch = task / heads % batches;
    const TileRange range{stride[0] ? batch : 0, stride[0] ? batch + 1 : a.batch,
                          stride[1] ? head : 0,  stride[1] ? head + 1 : a.heads,
                          stride[2] ? tile : 0,  stride[2] ? tile + 1 : tiles};
    kernels.bias_gradient(a, pass, finite.data(), range, stride, scratch[worker]);
  });
}

}  // namespace heed
