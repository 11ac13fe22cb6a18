// The decoder engine as an op of TensorFlow, for graphs. No arithmetic.
//
// HeedDecode takes
//   source         int32 (B, S)
//   source_mask    bool (B, S)
//   encoded        float (B, S, encoded width), or (0, 0, 0) if there is an encoder
//   uniform        float (B, L); here and below, an empty tensor stands for none
//   positions, rotation, relative_bias                       float (L, D), (L, H), (N, L)
//   source_positions, source_rotation, source_relative_bias  float (S, D), (S, H), (N, 2 S)
//   prompt         int32 (B, L)
//   weights        floats of any shape
// and returns tokens, int32 (B, N, L), and scores, float (B, N), or (0, 0) if the search returns none.
//
// Its attributes hold structs of heed_decoder.h, byte by byte. `stacks` has a HeedDecoderStack of the decoder, that of
// the encoder (without one: zeros), and the layers of both; where a struct has the address of a weight, there is the
// number of the weight, the first one being 1. `search` has a HeedDecoding without addresses and sizes of inputs.
//
// Weights are packed once for each version of their variables. A version is a buffer: the packed weights hold on to the
// tensors, and nobody writes to a buffer that others hold. So the same address means the same numbers.
#include <pthread.h>

#include <mutex>

#include "../../include/heed_decoder.h"
#include "registration.h"

namespace heed::tf {
namespace {

enum Input {
  kSource,
  kMask,
  kEncoded,
  kUniform,
  kPositions,
  kRotation,
  kBias,
  kSourcePositions,
  kSourceRotation,
  kSourceBias,
  kPrompt,
  kWeights
};

// Stacks, read from the attribute `stacks` and the weights.
class Stacks {
 public:
  HeedDecoderStack decoder{}, encoder{};

  Stacks(const std::string& bytes, const Tensor* weights, size_t weight_count)
      : weights_(weights), weight_count_(weight_count) {
    Reader reader(bytes, "`stacks` must hold two stacks and their layers alone");
    reader.read(&decoder).read(&encoder);
    for (auto [stack, layers] : {std::pair{&decoder, &layers_}, std::pair{&encoder, &encoder_layers_}}) {
      reader.read(*layers, stack->layer_count);
      stack->layers = layers->data();
      find(*stack, *layers);
    }
    reader.end();
    decoder.encoder = encoder.width > 0 ? &encoder : nullptr, encoder.encoder = nullptr;
  }

 private:
  // Each puts the addresses of weights in the place of their numbers.
  void find(HeedDecoderStack& s, std::vector<HeedDecoderLayer>& layers) const {
    find(s.embedding, s.vocabulary, s.width);
    find(s.embedding_norm, s.width), find(s.final_norm, s.width), find(s.logits);
    for (HeedDecoderLayer& layer : layers) {
      for (HeedNorm* norm : {&layer.self_norm, &layer.cross_norm, &layer.feed_forward_norm, &layer.self_post_norm,
                             &layer.feed_forward_post_norm})
        find(*norm, s.width);
      if (layer.experts.count != 0) fail("`stacks` must hold no experts");
      for (HeedDense* dense : {&layer.hidden, &layer.up, &layer.back}) find(*dense);
      for (HeedDecoderAttention* attention : {&layer.self, &layer.cross}) find(*attention, s);
    }
  }
  void find(HeedDecoderAttention& a, const HeedDecoderStack& s) const {
    for (HeedDense* dense : {&a.query, &a.key, &a.value, &a.output, &a.gate}) find(*dense);
    find(a.query_norm, s.head_dim), find(a.key_norm, s.head_dim);
#define FIND(name) find_option(a.options.name, s.heads);
    HEED_EACH_SCORE_OPTION(FIND)
#undef FIND
  }
  void find_option(const float*& weight, int64_t heads) const { find(weight, heads); }
  void find_option(double&, int64_t) const {}
  void find_option(int64_t&, int64_t) const {}
  void find(HeedDense& dense) const {
    if (dense.whole) fail("`stacks` must not hold weights of integers");
    find(dense.weight, dense.inputs, dense.outputs), find(dense.bias, dense.outputs);
  }
  void find(HeedNorm& norm, int64_t width) const { find(norm.gamma, width), find(norm.beta, width); }
  void find(const float*& weight, int64_t rows, int64_t columns = 1) const {
    const auto number = reinterpret_cast<uintptr_t>(weight);
    if (number == 0) return;
    if (number > weight_count_) fail("`stacks` must hold numbers of weights");
    const Tensor& x = weights_[number - 1];
    int64_t count = 0;
    if (__builtin_mul_overflow(rows, columns, &count) || x.shape.count() != count)
      fail("a weight must hold " + std::to_string(rows) + " x " + std::to_string(columns) + " numbers" +
           x.shape.received());
    weight = x.as<float>();
  }

  const Tensor* const weights_;
  const size_t weight_count_;
  std::vector<HeedDecoderLayer> layers_, encoder_layers_;
};

// Packed weights, and what they were packed from.
struct Packed {
  std::string stacks;
  std::vector<int64_t> version;
  std::vector<Tensor> weights;
  HeedDecoder* decoder = nullptr;
  HeedDecoderStack sizes{}, encoder_sizes{};  // of these structs the sizes alone: what they point to is gone

  Packed() = default;
  Packed(const Packed&) = delete;
  ~Packed() { heed_decoder_free(decoder); }
};

// All packed weights of this process, which the graphs of a model share, and the lock of these and of every `Kernel`.
// Never destroyed: TensorFlow may delete kernels while the process ends.
struct Shared {
  std::mutex mutex;
  std::vector<std::weak_ptr<const Packed>> packed;
};
Shared& shared = *new Shared;

// A process that forks waits until no other thread packs weights: its child would find the lock closed for ever.
void lock_packed() { shared.mutex.lock(); }
void unlock_packed() { shared.mutex.unlock(); }
[[maybe_unused]] const int registered = pthread_atfork(lock_packed, unlock_packed, unlock_packed);

// One op of one graph.
struct Kernel {
  std::string stacks, search;
  bool scored = false;
  int threads = 0;
  std::shared_ptr<const Packed> packed;
};

// Tells calls with the same `stacks` apart: by the addresses and shapes of the weights.
std::vector<int64_t> version_of(const std::vector<Tensor>& inputs) {
  std::vector<int64_t> version;
  for (size_t i = kWeights; i < inputs.size(); ++i) {
    version.push_back(reinterpret_cast<intptr_t>(inputs[i].data));
    version.insert(version.end(), inputs[i].shape.begin(), inputs[i].shape.end());
  }
  return version;
}

// The packed weights of this call. Moves the weights out of the inputs if it packs them.
std::shared_ptr<const Packed> packed_for(Kernel& kernel, std::vector<Tensor>& inputs) {
  std::vector<int64_t> version = version_of(inputs);
  const std::lock_guard<std::mutex> lock(shared.mutex);
  if (kernel.packed && kernel.packed->version == version) return kernel.packed;
  kernel.packed.reset();  // first, so that two versions need not be there at once
  std::vector<std::weak_ptr<const Packed>> alive;
  for (const auto& one : shared.packed)
    if (const auto there = one.lock()) {
      alive.push_back(one);
      if (there->stacks == kernel.stacks && there->version == version) kernel.packed = there;
    }
  shared.packed.swap(alive);
  if (!kernel.packed) {
    const auto made = std::make_shared<Packed>();
    const Stacks stacks(kernel.stacks, inputs.data() + kWeights, inputs.size() - kWeights);
    check(heed_decoder_make(&stacks.decoder, &made->decoder));
    made->stacks = kernel.stacks, made->version = std::move(version);
    made->sizes = stacks.decoder, made->encoder_sizes = stacks.encoder;
    made->weights.assign(std::make_move_iterator(inputs.begin() + kWeights), std::make_move_iterator(inputs.end()));
    kernel.packed = made;
    shared.packed.push_back(made);
  }
  return kernel.packed;
}

// The numbers of an input, or null if it is empty.
template <class T = float>
const T* optional(const Tensor& x, const char* name, const Shape& shape) {
  if (x.shape.count() == 0) return nullptr;
  if (x.shape != shape) expect(false, name, ("must have " + shape.text() + " by the other inputs").c_str(), x);
  return x.as<const T>();
}

void run(void* state, TF_OpKernelContext* context) {
  guarded(context, [&] {
    Kernel& kernel = *static_cast<Kernel*>(state);
    const Status status;
    std::vector<Tensor> inputs = inputs_of(context, status);
    const Tensor &source = inputs[kSource], &encoded = inputs[kEncoded];
    expect(source.shape.rank() == 2, "source", "must have shape (B, S)", source);
    expect(encoded.shape.rank() == 3, "encoded", "must have shape (B, S, D)", encoded);
    const int64_t batch = source.shape[0], positions = source.shape[1];
    // Before any of these sizes is multiplied: an empty tensor may have any.
    expect(batch <= HEED_MOST_BATCH && positions <= HEED_MOST_LENGTH, "source",
           "must have at most 2^31 rows of at most 2^20 tokens", source);
    HeedDecoding search{};
    Reader(kernel.search, "`search` must hold a search").read(&search).end();
    search.on_token = nullptr, search.listener = nullptr;
    search.first_tokens = nullptr, search.stop_tokens = nullptr, search.stop_count = 0, search.rotations = 1;
    search.tokens_read = nullptr;
    const int64_t length = search.length;
    if (length < 1 || length > HEED_MOST_LENGTH)
      fail("`search` must hold a length from 1 to 2^20. Received: " + std::to_string(length));
    const auto packed = packed_for(kernel, inputs);
    const HeedDecoderStack &decoder = packed->sizes, &encoder = packed->encoder_sizes;

    search.batch = batch, search.source_length = positions;
    search.source = source.as<int32_t>();
    search.encoded = optional(encoded, "encoded", {batch, positions, decoder.encoded_width});
    search.source_mask = optional<uint8_t>(inputs[kMask], "source_mask", {batch, positions});
    search.uniform = optional(inputs[kUniform], "uniform", {batch, length});
    search.positions = optional(inputs[kPositions], "positions", {length, decoder.width});
    search.rotation = optional(inputs[kRotation], "rotation", {length, decoder.head_dim});
    search.relative_bias = optional(inputs[kBias], "relative_bias", {decoder.heads, length});
    search.source_positions = optional(inputs[kSourcePositions], "source_positions", {positions, encoder.width});
    search.source_rotation = optional(inputs[kSourceRotation], "source_rotation", {positions, encoder.head_dim});
    search.source_relative_bias = optional(inputs[kSourceBias], "source_relative_bias", {encoder.heads, 2 * positions});
    search.prompt = optional<int32_t>(inputs[kPrompt], "prompt", {batch, length});
    const int64_t results = std::min<int64_t>(std::max(search.results, 1), HEED_MOST_BEAMS);
    const Tensor tokens = allocated(context, status, 0, kInt32, {batch, results, length});
    const Tensor scores = allocated(context, status, 1, kFloat32, kernel.scored ? Shape{batch, results} : Shape{0, 0});
    check(heed_decode(packed->decoder, &search, tokens.as<int32_t>(), kernel.scored ? scores.as<float>() : nullptr,
                      kernel.threads));
  });
}

void* create_kernel(TF_OpKernelConstruction* construction) {
  const Status status;
  auto* made = new Kernel;
  made->stacks = read_string(construction, "stacks"), made->search = read_string(construction, "search");
  TF_OpKernelConstruction_GetAttrInt32(construction, "threads", &made->threads, status.get());
  unsigned char scored = 0;
  TF_OpKernelConstruction_GetAttrBool(construction, "scored", &scored, status.get());
  made->scored = scored != 0;
  return made;
}

void destroy_kernel(void* state) {
  const std::unique_ptr<Kernel> made(static_cast<Kernel*>(state));
  const std::lock_guard<std::mutex> lock(shared.mutex);
  made->packed.reset();
}

__attribute__((constructor)) void register_decoder() {
  if (!bind()) return;
  register_op("HeedDecode", TF_ShapeInferenceContextSetUnknownShape, run,
              {"W: int >= 1", "stacks: string", "search: string", "scored: bool", "threads: int"},
              {"source: int32", "source_mask: bool", "encoded: float", "uniform: float", "positions: float",
               "rotation: float", "relative_bias: float", "source_positions: float", "source_rotation: float",
               "source_relative_bias: float", "prompt: int32", "weights: W * float"},
              {"tokens: int32", "scores: float"}, create_kernel, destroy_kernel, {nullptr, {kOther}});
}

}  // namespace
}  // namespace heed::tf
