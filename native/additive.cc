// Checks and splits the work. The split depends on the shapes alone, never on the number of threads.
#include "additive.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "instruction_sets.h"
#include "kernels/registry.h"
#include "work.h"

namespace heed {
namespace {

constexpr int64_t kTasks = 16;  // so many keep the threads of most machines busy

int panel_length(const Attention& a) { return static_cast<int>(std::min<int64_t>(kLongestPanel, a.queries)); }

int64_t panels_of(const Attention& a) { return a.queries ? ceil_div(a.queries, panel_length(a)) : 0; }

// Into how many parts the keys go where there are only so many tasks: with two blocks each, joining costs little.
int64_t key_parts(const Attention& a, int64_t tasks) {
  return std::max<int64_t>(1, std::min(kTasks / tasks, ceil_div(a.keys, kKeyBlock) / 2));
}

int at_most(int threads, int64_t tasks) {
  return static_cast<int>(std::min<int64_t>(std::max(1, threads), std::max<int64_t>(1, tasks)));
}

}  // namespace

const char* check(const Additive& additive) {
  const Attention& a = additive.attention;
  if (a.width < 1 || a.value_width < 1 || a.width > 65536 || a.value_width > 65536)
    return "U and V must be in [1, 65536]";
  if (const char* problem = check(a)) return problem;
  if (a.heads != 1 || a.groups != 1) return "additive attention has one head";
  if (a.scale != 1 || a.soft_cap != 0 || a.bias.data || a.slopes)
    return "additive attention has no scale, soft cap, bias of scores or slopes";
  if (!additive.score_vector) return "the score vector is missing";
  return nullptr;
}

const char* forward(const Additive& additive, const Forward& results, int threads) {
  if (const char* problem = check(additive)) return problem;
  const Attention& a = additive.attention;
  const int length = panel_length(a);
  const int64_t panels = panels_of(a), count = a.batch * panels;
  if (count == 0) return nullptr;
  const Kernels& kernels = kernels_for(a);
  std::vector<uint8_t> finite;
  scan(a, kernels, threads, &finite);
  const int64_t parts = key_parts(a, count);
  threads = at_most(threads, count * parts);
  const size_t state_bytes = in_cache_lines(kernels.additive.state_bytes(additive));
  const size_t scratch_bytes = in_cache_lines(kernels.additive.forward_bytes(additive));
  const size_t states = static_cast<size_t>(parts > 1 ? count * parts : threads);
  const Memory memory = allocate(state_bytes * states + scratch_bytes * static_cast<size_t>(threads));
  if (!memory) return kNoMemory;
  auto state = [&](int64_t i) { return memory.get() + state_bytes * static_cast<size_t>(i); };
  // The last panels first: under a causal mask they are the longest.
  auto part_of = [&](int64_t i, int64_t part) {
    return AdditivePart{i % a.batch, panels - 1 - i / a.batch, length, part, parts};
  };
  const int64_t distance = static_cast<int64_t>(state_bytes);
  for_each(count * parts, threads, [&](int64_t task, int worker) {
    const AdditivePart part = part_of(task / parts, task % parts);
    char* own = state(parts > 1 ? task : worker);
    kernels.additive.forward(additive, finite.data(), part, own,
                             state(static_cast<int64_t>(states)) + scratch_bytes * static_cast<size_t>(worker));
    if (parts == 1) kernels.additive.finish(additive, results, part, own, distance);
  });
  if (parts > 1)
    for_each(count, threads, [&](int64_t i, int) {
      kernels.additive.finish(additive, results, part_of(i, 0), state(i * parts), distance);
    });
  return nullptr;
}

const char* backward(const Additive& additive, const AdditiveBackward& pass, int threads) {
  if (const char* problem = check(additive)) return problem;
  const Attention& a = additive.attention;
  const Kernels& kernels = kernels_for(a);
  if (a.batch == 0) {
    for (void* gradient : {pass.score_vector_gradient, pass.bias_gradient})
      std::memset(gradient, 0, static_cast<size_t>(a.width) * kernels.compute_bytes);
    return nullptr;
  }
  std::vector<uint8_t> finite;
  scan(a, kernels, threads, &finite);
  const int length = panel_length(a), units = kernels.additive.units_row(a.width);
  const int value_row = kernels.gradient_row(a.value_width);
  const int64_t panels = panels_of(a);
  auto bytes_of = [&](int64_t numbers) { return in_cache_lines(static_cast<size_t>(numbers) * kernels.compute_bytes); };
  const size_t key_bytes = bytes_of(a.keys * units), value_bytes = bytes_of(a.keys * value_row);
  const size_t query_bytes = bytes_of(a.queries * units), vector_bytes = bytes_of(units);
  const size_t sum_bytes = key_bytes + value_bytes;
  // Few batch entries: their queries go into parts, of two panels at least, with sums of their own, as far as 64 MiB
  // go; and if these are few too, their keys.
  int64_t parts = std::max<int64_t>(1, std::min(ceil_div(kTasks, a.batch), panels / 2));
  while (parts > 1 && static_cast<double>(sum_bytes) * static_cast<double>(a.batch * parts) > 67108864.0) --parts;
  const int64_t shares = key_parts(a, a.batch * parts), tasks = a.batch * parts * shares;
  const bool alone = parts == 1 && shares == 1;  // a task has all of its batch entry
  threads = at_most(threads, tasks);

  const size_t scratch_bytes = in_cache_lines(kernels.additive.backward_bytes(additive));
  const size_t scratch = scratch_bytes * static_cast<size_t>(threads);
  const size_t key_sums = sum_bytes * static_cast<size_t>(alone ? threads : a.batch * parts);
  const size_t query_sums = shares > 1 ? query_bytes * static_cast<size_t>(a.batch * shares) : 0;
  const Memory memory = allocate(scratch + key_sums + query_sums + 2 * vector_bytes * static_cast<size_t>(tasks));
  if (!memory) return kNoMemory;
  char *const keys_at = memory.get() + scratch, *const queries_at = keys_at + key_sums;
  char* const vectors_at = queries_at + query_sums;

  const int64_t distance = static_cast<int64_t>(sum_bytes), query_distance = static_cast<int64_t>(query_bytes);
  auto write_keys = [&](int64_t b, int64_t begin, int64_t end, const char* from) {
    const Backward& to = pass.attention;
    kernels.write_rows(to.key_gradient, b, 0, begin, end, a.width, units, from, parts, distance);
    kernels.write_rows(to.value_gradient, b, 0, begin, end, a.value_width, value_row, from + key_bytes, parts,
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
    for (int64_t j = share * kKeyBlock; j < a.keys; j += shares * kKeyBlock) {
      const int64_t rows = std::min<int64_t>(kKeyBlock, a.keys - j);
      auto clear = [&](char* from, int row) {
        const size_t row_bytes = static_cast<size_t>(row) * kernels.compute_bytes;
        std::memset(from + static_cast<size_t>(j) * row_bytes, 0, static_cast<size_t>(rows) * row_bytes);
      };
      clear(keys, units);
      clear(keys + key_bytes, value_row);
    }
    // Every `parts`-th panel: under a causal mask each part gets long and short ones.
    for (int64_t panel = slot % parts; panel < panels; panel += parts)
      kernels.additive.backward(additive, pass, finite.data(), {b, panel, length, share, shares}, sums,
                                memory.get() + scratch_bytes * static_cast<size_t>(worker));
    if (alone) write_keys(b, 0, a.keys, keys);
  });
  auto in_chunks = [&](int64_t rows, auto write) {
    const int64_t chunks = ceil_div(rows, kLongestPanel);
    for_each(a.batch * chunks, threads, [&](int64_t i, int) {
      const int64_t begin = i % chunks * kLongestPanel;
      write(i / chunks, begin, std::min<int64_t>(rows, begin + kLongestPanel));
    });
  };
  if (!alone)
    in_chunks(a.keys, [&](int64_t b, int64_t begin, int64_t end) {
      write_keys(b, begin, end, keys_at + sum_bytes * static_cast<size_t>(b * parts));
    });
  if (shares > 1)
    in_chunks(a.queries, [&](int64_t b, int64_t begin, int64_t end) {
      kernels.write_rows(pass.attention.query_gradient, b, 0, begin, end, a.width, units,
                         queries_at + query_bytes * static_cast<size_t>(b * shares), shares, query_distance);
    });
  Attention compute = a;
  compute.number = a.number == Number::kFloat64 ? Number::kFloat64 : Number::kFloat32;
  auto write_vector = [&](void* to, const char* from) {
    kernels_for(compute).write_rows({to, 0, 0, 0}, 0, 0, 0, 1, a.width, units, from, tasks,
                                    static_cast<int64_t>(2 * vector_bytes));
  };
  write_vector(pass.score_vector_gradient, vectors_at);
  write_vector(pass.bias_gradient, vectors_at + vector_bytes);
  return nullptr;
}

}  // namespace heed
