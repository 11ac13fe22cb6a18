// Many threads call the core at once, and processes fork, as a program of its own: sanitizers watch it.
//
//   heed_stress callers    8 threads, each with calls of its own
//   heed_stress fork       children made after calls, while no call runs
//   heed_stress fork-busy  children made while other threads call
//   heed_stress fork-early children made while another thread is in the very first call of the process
//
// Each call must give the bits that one thread gives. Exit status 0: all well.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "heed.h"

namespace {

// Enough for several threads: less is done by the caller alone.
constexpr int kBatch = 2, kLength = 150, kHeads = 2, kWidth = 24;
constexpr size_t kCount = size_t{kBatch} * kLength * kHeads * kWidth;

struct Problem {
  std::vector<float> tensors[4];  // query, key, value, gradient of the output
  std::vector<int32_t> lengths;
  HeedAttention attention{};
  HeedMaskRule rule{};
};

using Results = std::vector<float>;  // output, log-sum-exp, what is kept of the softmax, three gradients

HeedTensor tensor(float* data) { return {data, kLength * kHeads * kWidth, kHeads * kWidth, kWidth}; }

void fill(Problem* p, uint32_t seed) {
  for (auto& tensor : p->tensors) {
    tensor.resize(kCount);
    for (float& x : tensor) {
      seed = seed * 1664525u + 1013904223u;
      x = static_cast<float>(seed >> 8) / 8388608.0f - 1;
    }
  }
  p->lengths = {kLength, static_cast<int32_t>(seed % kLength)};
  HeedAttention& a = p->attention;
  a.batch = kBatch, a.heads = a.kv_heads = kHeads;
  a.query_length = a.key_length = kLength, a.head_dim = a.value_dim = kWidth;
  a.scale = 0.35;
  a.query = tensor(p->tensors[0].data()), a.key = tensor(p->tensors[1].data()), a.value = tensor(p->tensors[2].data());
  p->rule.kind = HEED_LENGTHS;
  p->rule.first = {p->lengths.data(), kBatch, 1};
  a.rule_count = 1, a.rules = &p->rule;
}

// Empty if a call was refused.
Results run(Problem& p, int threads) {
  constexpr size_t kRows = size_t{kBatch} * kHeads * kLength;
  Results all(4 * kCount + 3 * kRows);
  float *output = all.data(), *lse = output + kCount, *softmax = lse + kRows, *gradients = softmax + 2 * kRows;
  const HeedForward forward{tensor(output), lse, softmax};
  const HeedBackward backward{tensor(output),
                              softmax,
                              tensor(p.tensors[3].data()),
                              nullptr,
                              tensor(gradients),
                              tensor(gradients + kCount),
                              tensor(gradients + 2 * kCount),
                              nullptr,
                              nullptr};
  if (heed_forward(&p.attention, &forward, threads) || heed_backward(&p.attention, &backward, threads)) return {};
  return all;
}

bool same(const Results& a, const Results& b) {
  return !a.empty() && a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// `rounds` calls from each of `callers` threads; how many went wrong.
int call_at_once(int callers, int rounds) {
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int caller = 0; caller < callers; ++caller)
    threads.emplace_back([&wrong, caller, rounds] {
      Problem p;
      fill(&p, static_cast<uint32_t>(caller));
      const Results expected = run(p, 1);
      for (int round = 0; round < rounds; ++round) wrong += !same(run(p, 1 + round % 5), expected);
    });
  for (std::thread& thread : threads) thread.join();
  return wrong;
}

// Runs `work` in a child; whether it went wrong there. A child that hangs is ended by its alarm.
template <class Work>
bool wrong_in_child(const Work& work) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    _exit(work() == 0 ? 0 : 1);
  }
  int status = 0;
  return child < 0 || waitpid(child, &status, 0) != child || status != 0;
}

int fork_children(int children) {
  int wrong = 0;
  for (int i = 0; i < children; ++i) wrong += wrong_in_child([] { return call_at_once(2, 5); });
  return wrong;
}

// One thread calls for the first time in this process; `steps` later a child is made.
int fork_after_steps(int steps) {
  std::atomic<bool> go{false};
  std::thread first([&] {
    Problem p;
    fill(&p, 1);
    go = true;
    run(p, 2);
  });
  while (!go) {
  }
  for (volatile int step = 0; step < steps; step = step + 1) {
  }
  const bool wrong = wrong_in_child([] { return call_at_once(1, 2); });
  first.join();
  return wrong;
}

}  // namespace

int main(int count, char** arguments) {
  const char* mode = count == 2 ? arguments[1] : "";
  int wrong = -1;
  if (std::strcmp(mode, "callers") == 0) {
    wrong = call_at_once(8, 200);
  } else if (std::strcmp(mode, "fork") == 0) {
    wrong = call_at_once(2, 5) + fork_children(10);
  } else if (std::strcmp(mode, "fork-early") == 0) {
    wrong = 0;
    for (int i = 0; i < 300; ++i) wrong += wrong_in_child([i] { return fork_after_steps(i * 200); });
  } else if (std::strcmp(mode, "fork-busy") == 0) {
    std::atomic<bool> stop{false};
    std::atomic<int> busy_wrong{0};
    std::thread busy([&] {
      while (!stop) busy_wrong += call_at_once(4, 5);
    });
    wrong = fork_children(30);
    stop = true;
    busy.join();
    wrong += busy_wrong;
  }
  std::printf("%s: %d wrong\n", mode, wrong);
  return wrong == 0 ? 0 : 1;
}
