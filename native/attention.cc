// Checks, chooses kernels and splits the work. The split depends on the shapes alone, never on the number of threads.
#include "attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "instruction_sets.h"
#include "kernels/registry.h"
#include "work.h"

namespace heed {
namespace {

// Few queries: the keys are split as well, into stretches so short that the pages of memory which all heads share are
// still at hand when the next head comes.
const char* decode(const Attention& a, const Forward& results, const Kernels& kernels, int threads) {
  constexpr int64_t kStretch = 4;  // blocks
  const int64_t key_heads = a.batch * a.groups, blocks = ceil_div(a.keys, kKeyBlock);
  const int64_t each = std::max(std::min(kStretch, ceil_div(blocks * key_heads, 32)), ceil_div(blocks, kMostSplits));
  const int64_t splits = ceil_div(blocks, each);
  threads = static_cast<int>(std::min<int64_t>(std::max(1, threads), key_heads * splits));
  const size_t scratch = in_cache_lines(kernels.decode_bytes(a)), partial = kernels.partial_bytes(a);
  const size_t all_scratch = scratch * static_cast<size_t>(threads);
  const Memory memory = allocate(all_scratch + partial * static_cast<size_t>(key_heads * splits));
  if (!memory) return kNoMemory;
  const auto partials_of = [&](int64_t key_head) {
    return memory.get() + all_scratch + partial * static_cast<size_t>(key_head * splits);
  };
  for_each(key_heads * splits, threads, [&](int64_t index, int worker) {
    const int64_t group = index % a.groups, split = index / a.groups % splits, b = index / a.groups / splits;
    kernels.decode_split(a, b, group, split * each, std::min((split + 1) * each, blocks),
                         partials_of(b * a.groups + group) + partial * static_cast<size_t>(split),
                         memory.get() + scratch * static_cast<size_t>(worker));
  });
  for (int64_t key_head = 0; key_head < key_heads; ++key_head)
    kernels.decode_finish(a, results, key_head / a.groups, key_head % a.groups, partials_of(key_head), splits);
  return nullptr;
}

int panel_length(const Attention& a) { return static_cast<int>(std::min<int64_t>(kLongestPanel, a.queries)); }

bool bad_size(int64_t n) { return n < 0 || n > (int64_t{1} << 31); }

// Whether there are rows, but no memory that holds them.
bool missing(const Rows& rows, const Attention& a, int64_t positions, int64_t heads) {
  return !rows.data && a.batch > 0 && positions > 0 && heads > 0;
}

}  // namespace

const char* check(const Attention& a) {
  const int number = static_cast<int>(a.number);
  if (number < 0 || number > 3) return "number must be float32, float64, bfloat16 or float16";
  for (int64_t n : {a.batch, a.heads, a.groups, a.queries, a.keys, a.width, a.value_width})
    if (bad_size(n)) return "sizes must be in [0, 2^31]";
  if (a.groups == 0 ? a.heads != 0 : a.heads % a.groups != 0) return "N must be a multiple of K";
  if (a.width == 0 || a.value_width == 0 || a.width > 65536 || a.value_width > 65536)
    return "H and V must be in [1, 65536]";
  double pairs = static_cast<double>(a.batch) * static_cast<double>(a.heads);
  pairs *=
      static_cast<double>(std::max<int64_t>(a.queries, a.keys)) * static_cast<double>(std::max(a.width, a.value_width));
  if (pairs > 4e18) return "B * N * length * width must fit 63 bits";
  if (missing(a.query, a, a.queries, a.heads)) return "`query` is missing";
  if (missing(a.key, a, a.keys, a.groups)) return "`key` is missing";
  if (missing(a.value, a, a.keys, a.groups)) return "`value` is missing";
  if (!std::isfinite(a.scale)) return "scale must be finite";
  if (!(a.soft_cap >= 0) || !std::isfinite(a.soft_cap)) return "soft_cap must be 0 or a finite number above";
  if (a.number != Number::kFloat64) {
    if (std::abs(a.scale) > kMostScale) return "scale must be in [-1e30, 1e30], or in float64";
    if (a.soft_cap > 0 && (a.soft_cap < 1 / kMostScale || a.soft_cap > kMostScale))
      return "soft_cap must be 0, or in [1e-30, 1e30], or in float64";
  }
  if (!(a.dropout >= 0 && a.dropout < 1)) return "dropout must be in [0, 1)";
  if (a.rules < 0 || a.rules > kMostRules) return "there must be at most 8 mask rules";
  for (int r = 0; r < a.rules; ++r) {
    const MaskRule& rule = a.rule[r];
    const bool needs_first = rule.rule == Rule::kPrefix || rule.rule == Rule::kLengths || rule.rule == Rule::kSegments;
    if (static_cast<int>(rule.rule) < 0 || rule.rule > Rule::kDense) return "unknown kind of mask rule";
    if (needs_first && !rule.first) return "a mask rule lacks its numbers";
    if (rule.rule == Rule::kSegments && !rule.second) return "a mask rule lacks its numbers";
    if (rule.rule == Rule::kDense && !rule.dense.data) return "a mask rule lacks its array";
    if (rule.rule == Rule::kWindow && (rule.left < 0 || rule.right < 0)) return "a window must reach 0 or more";
  }
  return nullptr;
}

const char* forward(const Attention& a, const Forward& results, int threads) {
  if (const char* problem = check(a)) return problem;
  if (a.batch == 0 || a.heads == 0 || a.queries == 0) return nullptr;
  const Kernels& kernels = kernels_for(a);
  if (few_queries(a)) return decode(a, results, kernels, threads);
  std::vector<uint8_t> finite;
  scan(a, kernels, threads, &finite);
  const int length = panel_length(a);
  const int64_t panels = ceil_div(a.queries, length), heads = a.batch * a.heads;
  threads = static_cast<int>(std::min<int64_t>(std::max(1, threads), panels * heads));
  const size_t bytes = in_cache_lines(kernels.forward_bytes(a));
  const Memory memory = allocate(bytes * static_cast<size_t>(threads));
  if (!memory) return kNoMemory;
  const size_t packed_bytes = kernels.packed_bytes(a);
  const Memory packed = packed_bytes ? allocate(packed_bytes) : nullptr;
  if (packed_bytes) {
    if (!packed) return kNoMemory;
    const int64_t blocks = ceil_div(a.keys, kKeyBlock);
    for_each(a.batch * a.groups * blocks, threads, [&](int64_t index, int) {
      const int64_t key_head = index / blocks;
      kernels.pack(a, finite.data(), key_head / a.groups, key_head % a.groups, index % blocks, packed.get());
    });
  }
  for_each(panels * heads, threads, [&](int64_t index, int worker) {
    // The last panels first: under a causal mask they are the longest.
    const int64_t panel = panels - 1 - index / heads, head = index % heads;
    kernels.forward_panel(a, results, finite.data(), packed.get(), head / a.heads, head % a.heads, panel, length,
                          memory.get() + bytes * static_cast<size_t>(worker));
  });
  return nullptr;
}

const char* backward(const Attention& a, const Backward& pass, int threads) {
  if (const char* problem = check(a)) return problem;
  if (a.batch == 0 || a.groups == 0) return nullptr;
  const Kernels& kernels = kernels_for(a);
  std::vector<uint8_t> finite;
  scan(a, kernels, threads, &finite);
  const int length = panel_length(a);
  const int64_t panels = a.queries ? ceil_div(a.queries, length) : 0, members = a.heads / a.groups;
  const int key_row = kernels.gradient_row(a.width), value_row = kernels.gradient_row(a.value_width);
  const size_t key_bytes = in_cache_lines(static_cast<size_t>(a.keys * key_row) * kernels.compute_bytes);
  const size_t value_bytes = in_cache_lines(static_cast<size_t>(a.keys * value_row) * kernels.compute_bytes);
  const size_t sum_bytes = key_bytes + value_bytes;
  // Few key heads: their queries are split into parts with sums of their own, as far as 64 MiB go.
  const int64_t key_heads = a.batch * a.groups, pieces = std::max<int64_t>(1, members * panels);
  int64_t parts = std::min(ceil_div(16, key_heads), pieces);
  while (parts > 1 && static_cast<double>(sum_bytes) * static_cast<double>(key_heads * parts) > 67108864.0) --parts;
  const int64_t tasks = key_heads * parts;
  threads = static_cast<int>(std::min<int64_t>(std::max(1, threads), tasks));
  const size_t bytes = in_cache_lines(kernels.backward_bytes(a));
  const size_t scratch = bytes * static_cast<size_t>(threads);
  const int64_t sums = parts > 1 ? tasks : threads;
  const Memory memory = allocate(scratch + sum_bytes * static_cast<size_t>(sums));
  if (!memory) return kNoMemory;

  auto write = [&](int64_t key_head, const char* from, int64_t count) {
    const int64_t b = key_head / a.groups, group = key_head % a.groups, distance = static_cast<int64_t>(sum_bytes);
    kernels.write_rows(pass.key_gradient, b, group, 0, a.keys, a.width, key_row, from, count, distance);
    kernels.write_rows(pass.value_gradient, b, group, 0, a.keys, a.value_width, value_row, from + key_bytes, count,
                       distance);
  };
  for_each(tasks, threads, [&](int64_t task, int worker) {
    const int64_t key_head = task / parts, part = task % parts;
    const int64_t b = key_head / a.groups, group = key_head % a.groups;
    char* sum = memory.get() + scratch + sum_bytes * static_cast<size_t>(parts > 1 ? task : worker);
    std::memset(sum, 0, sum_bytes);
    // Every `parts`-th panel: under a causal mask each part gets long and short ones.
    kernels.backward_part(a, pass, finite.data(), b, group, part, parts, sum, sum + key_bytes,
                          memory.get() + bytes * static_cast<size_t>(worker));
    if (parts == 1) write(key_head, sum, 1);
  });
  if (parts > 1)
    for_each(key_heads, threads, [&](int64_t key_head, int) {
      write(key_head, memory.get() + scratch + sum_bytes * static_cast<size_t>(key_head * parts), parts);
    });
  return nullptr;
}

const char* bias_gradient(const Attention& a, const Backward& pass, void* gradient, int threads) {
  if (const char* problem = check(a)) return problem;
  if (!a.bias.data) return "there is no bias";
  const Kernels& kernels = kernels_for(a);
  const int64_t* stride = a.bias.stride;
  const int64_t full[4] = {a.batch, a.heads, a.queries, a.keys};
  size_t bytes = kernels.compute_bytes;
  for (int axis = 0; axis < 4; ++axis) bytes *= static_cast<size_t>(stride[axis] ? full[axis] : 1);
  std::memset(gradient, 0, bytes);
  if (a.batch == 0 || a.heads == 0 || a.queries == 0 || a.keys == 0) return nullptr;
  std::vector<uint8_t> finite;
  scan(a, kernels, threads, &finite);
  // One task for each part of the result that no other writes to; along an axis that broadcasts it takes all.
  const int64_t panels = ceil_div(a.queries, panel_length(a));
  const int64_t batches = stride[0] ? a.batch : 1, heads = stride[1] ? a.heads : 1, rows = stride[2] ? panels : 1;
  const int64_t tasks = batches * heads * rows;
  threads = static_cast<int>(std::min<int64_t>(std::max(1, threads), tasks));
  const size_t scratch = in_cache_lines(kernels.backward_bytes(a));
  const Memory memory = allocate(scratch * static_cast<size_t>(threads));
  if (!memory) return kNoMemory;
  for_each(tasks, threads, [&](int64_t task, int worker) {
    // The last panels first: under a causal mask they are the longest.
    const int64_t panel = rows - 1 - task / (batches * heads), head = task % heads, batch = task / heads % batches;
    const BiasRows owned{stride[0] ? batch : 0, stride[0] ? batch + 1 : a.batch,
                         stride[1] ? head : 0,  stride[1] ? head + 1 : a.heads,
                         stride[2] ? panel : 0, stride[2] ? panel + 1 : panels};
    kernels.bias_gradient(a, pass, finite.data(), owned, gradient,
                          memory.get() + scratch * static_cast<size_t>(worker));
  });
  return nullptr;
}

}  // namespace heed
