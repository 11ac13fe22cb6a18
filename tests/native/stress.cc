// Many threads call the core at once, and processes fork, as a program of its own: sanitizers watch it.
//
//   heed_stress callers    8 threads, each with calls of its own
//   heed_stress decoders   8 threads, each with decodings of its own by one decoder
//   heed_stress team       2 threads, each with one text of a wide decoder, whose products several threads share
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
#include "heed_decoder.h"

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

using Results = std::vector<float>;  // output, log-sum-exp, stored softmax values, three gradients

HeedTensor tensor(float* data) { return {data, kLength * kHeads * kWidth, kHeads * kWidth, kWidth}; }

// So many numbers in [-1, 1).
std::vector<float> drawn(size_t count, uint32_t& seed) {
  std::vector<float> numbers(count);
  for (float& x : numbers) {
    seed = seed * 1664525u + 1013904223u;
    x = static_cast<float>(seed >> 8) / 8388608.0f - 1;
  }
  return numbers;
}

void fill(Problem* p, uint32_t seed) {
  for (auto& tensor : p->tensors) tensor = drawn(kCount, seed);
  p->lengths = {kLength, static_cast<int32_t>(seed % kLength)};
  HeedAttention& a = p->attention;
  a.batch = kBatch, a.heads = a.kv_heads = kHeads;
  a.query_length = a.key_length = kLength, a.head_dim = a.value_dim = kWidth;
  a.scoring.scale = 0.35;
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

constexpr int64_t kModel = 16, kHidden = 24, kVocabulary = 40;
constexpr int64_t kWideHidden = 1 << 17;  // products so wide that threads share them
constexpr int64_t kTexts = 9, kTokens = 12, kSource = 7;
constexpr int64_t kPrompt = 100, kLongTokens = kPrompt + 3;  // so long that threads share the heads

// An encoder and a decoder of one layer each, with weights of their own.
struct Model {
  std::vector<std::vector<float>> numbers;
  HeedDecoderLayer layers[2] = {};
  HeedDecoderStack encoder{}, decoder{};
  HeedDecoder* made = nullptr;
  const int64_t hidden;

  Model(int32_t pack, int32_t in_place, int64_t hidden_width) : hidden(hidden_width) {
    encoder = stack(layers[0], 0, pack);
    decoder = stack(layers[1], kModel, pack);
    encoder.in_place = decoder.in_place = in_place;
    decoder.logits = dense(kModel, kVocabulary);
    decoder.encoder = &encoder;
    if (heed_decoder_make(&decoder, &made)) made = nullptr;
  }
  Model(const Model&) = delete;
  ~Model() { heed_decoder_free(made); }

 private:
  const float* some(int64_t count) {
    uint32_t seed = static_cast<uint32_t>(numbers.size());
    numbers.push_back(drawn(static_cast<size_t>(count), seed));
    return numbers.back().data();
  }
  HeedDense dense(int64_t inputs, int64_t outputs) {
    return {some(inputs * outputs), some(outputs), inputs, outputs, 0, nullptr, nullptr, 0};
  }
  HeedNorm norm() { return {some(kModel), some(kModel), 1e-6, 0}; }
  HeedDecoderAttention attention() {
    HeedDecoderAttention a{};
    a.query = dense(kModel, kModel), a.key = dense(kModel, kModel), a.value = dense(kModel, kModel);
    a.output = dense(kModel, kModel);
    return a;
  }
  HeedDecoderStack stack(HeedDecoderLayer& layer, int64_t encoded_width, int32_t pack) {
    layer.self_norm = norm(), layer.self = attention();
    if (encoded_width) layer.cross_norm = norm(), layer.cross = attention();
    layer.feed_forward_norm = norm(), layer.hidden = dense(kModel, hidden), layer.back = dense(hidden, kModel);
    layer.activation = HEED_RELU, layer.norm_first = 1;
    HeedDecoderStack s{};
    s.width = kModel, s.heads = s.kv_heads = 2, s.head_dim = s.value_dim = kModel / 2;
    s.encoded_width = encoded_width, s.vocabulary = kVocabulary;
    s.embedding = some(kVocabulary * kModel), s.embedding_scale = 1, s.pack = pack;
    s.layer_count = 1, s.layers = &layer;
    return s;
  }
};

// Empty if a call was refused.
std::vector<int32_t> decode(const Model& model, int64_t texts, uint32_t seed, int32_t search, int threads) {
  const int64_t length = texts == 1 ? kLongTokens : kTokens;
  std::vector<int32_t> source(static_cast<size_t>(texts * kSource)), tokens(static_cast<size_t>(texts * length));
  std::vector<int32_t> prompt(static_cast<size_t>(kLongTokens));
  for (size_t i = 0; i < size_t{kPrompt}; ++i) prompt[i] = 3 + static_cast<int32_t>((seed + i) % (kVocabulary - 3));
  for (size_t i = 0; i < source.size(); ++i) source[i] = 3 + static_cast<int32_t>((seed + 7 * i) % (kVocabulary - 3));
  std::vector<float> uniform = drawn(tokens.size(), seed);
  for (float& x : uniform) x = (x + 1) / 2;
  HeedDecoding d{};
  d.batch = texts, d.length = length, d.source_length = kSource, d.source = source.data();
  if (texts == 1) d.prompt = prompt.data();
  d.pad_token = 0, d.start_token = 1, d.end_token = 2;
  d.search = search, d.uniform = uniform.data(), d.temperature = 1, d.beams = 3;
  if (heed_decode(model.made, &d, tokens.data(), nullptr, threads)) return {};
  return tokens;
}

int decode_at_once(int callers, int rounds, int64_t texts, int64_t hidden) {
  std::atomic<int> wrong{0};
  const struct {
    int32_t pack, in_place;
  } formats[] = {{HEED_PACK_FLOAT32, -1}, {HEED_PACK_FLOAT32, 1}, {HEED_PACK_BFLOAT16, 0}, {HEED_PACK_INT8, 0}};
  for (const auto& format : formats) {
    const Model model(format.pack, format.in_place, hidden);
    std::vector<std::thread> threads;
    for (int caller = 0; caller < callers; ++caller)
      threads.emplace_back([&wrong, &model, caller, rounds, texts] {
        const uint32_t seed = static_cast<uint32_t>(caller);
        const int32_t search = caller % 3;  // greedy, sampled, beams
        const std::vector<int32_t> expected = decode(model, texts, seed, search, 1);
        for (int round = 0; round < rounds; ++round)
          wrong += expected.empty() || decode(model, texts, seed, search, 1 + round % 5) != expected;
      });
    for (std::thread& thread : threads) thread.join();
  }
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
  } else if (std::strcmp(mode, "decoders") == 0) {
    wrong = decode_at_once(8, 40, kTexts, kHidden);
  } else if (std::strcmp(mode, "team") == 0) {
    wrong = decode_at_once(2, 5, 1, kWideHidden);
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
