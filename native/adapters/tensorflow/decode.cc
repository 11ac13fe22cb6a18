// The decoder engine as an op of TensorFlow. No arithmetic.
//
// HeedDecode takes
//   source         int32 (B, S)
//   source_mask    bool (B, S)
//   encoded        float (B, S, width of what is encoded), or (0, 0, 0): the encoder that is there encodes the source
//   uniform        float (B, L); here and below, an empty tensor stands for none
//   positions, rotation, relative_bias                       float (L, D), (L, H), (N, L)
//   source_positions, source_rotation, source_relative_bias  float (S, D), (S, H), (N, 2 S)
//   prompt         int32 (B, L)
//   sizes          int64, see Sizes
//   settings       double, see Settings
//   numbers        double: what the stacks are told beside their weights, in the order in which `Stacks` asks for it
//   slots          int64: for each weight, in the same order, which of `weights` it is; -1 for none
//   weights        floats of any shape
// and gives tokens, int32 (B, N, L), and scores, float (B, N), or (0, 0) where none are asked for.
//
// Weights are packed once for each version of the variables that they are read from. A version is a buffer: while the
// packed form lives it holds on to the tensors, and nobody writes to a buffer that others hold. So the same address
// means the same numbers.
#include <cstdio>
#include <cstring>
#include <mutex>

#include "../../include/heed_decoder.h"
#include "tensors.h"

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
  kSizes,
  kSettings,
  kNumbers,
  kSlots,
  kWeights
};

// The numbers in `sizes` and `settings`, in their order.
enum Sizes {
  kLength,
  kEncodes,  // whether there is an encoder
  kPack,
  kPad,
  kStart,
  kEnd,
  kSearch,
  kTopK,
  kBeams,
  kResults,  // N
  kScored,   // whether scores are asked for
  kThreads,
  kSizeCount
};
enum Settings { kTemperature, kTopP, kLengthPenalty, kSettingCount };

// The stacks as heed_decoder.h describes them, made of an op's inputs: the encoder's, if there is one, then the
// decoder's.
class Stacks {
 public:
  explicit Stacks(const std::vector<Tensor>& inputs) : inputs_(inputs) {
    const bool encodes = inputs[kSizes].data<int64_t>()[kEncodes] != 0;
    if (encodes) encoder_ = read(encoder_layers_, 0);
    decoder = read(layers_, encodes ? encoder_.width : inputs[kEncoded].dim(2));
    decoder.encoder = encodes ? &encoder_ : nullptr;
    const Tensor &slots = inputs[kSlots], &numbers = inputs[kNumbers];
    if (next_ != slots.dim(0)) fail("there must be a slot for each weight of the decoder" + slots.described());
    if (next_number_ != numbers.dim(0)) fail("there must be as many `numbers` as are asked for" + numbers.described());
  }

  HeedDecoderStack decoder{};

 private:
  HeedDecoderStack read(std::vector<HeedDecoderLayer>& layers, int64_t encoded_width) {
    HeedDecoderStack stack{};
    stack.heads = size(), stack.kv_heads = size(), stack.head_dim = size(), stack.value_dim = size();
    stack.encoded_width = encoded_width;
    stack.pack = static_cast<int32_t>(inputs_[kSizes].data<int64_t>()[kPack]);
    stack.embedding_scale = number();
    const int64_t count = size();
    const Tensor* embedding = next();
    if (!embedding || embedding->rank() != 2) fail("the embedding must have rank 2");
    stack.vocabulary = embedding->dim(0), stack.width = embedding->dim(1), stack.embedding = embedding->data<float>();
    stack.final_norm = norm(stack.width);
    stack.logits = dense(stack.width, stack.vocabulary, size() != 0);
    for (int64_t i = 0; i < count; ++i) layers.push_back(layer(stack));
    stack.layers = layers.data(), stack.layer_count = static_cast<int32_t>(layers.size());
    return stack;
  }

  HeedDecoderLayer layer(const HeedDecoderStack& s) {
    HeedDecoderLayer made{};
    made.norm_first = size() != 0, made.activation = static_cast<int32_t>(size());
    made.self_norm = norm(s.width), made.self = attention(s, s.width);
    if (size() != 0) made.cross_norm = norm(s.width), made.cross = attention(s, s.encoded_width);
    made.feed_forward_norm = norm(s.width);
    made.hidden = dense(s.width, 0), made.up = dense(s.width, made.hidden.outputs);
    made.back = dense(made.hidden.outputs, s.width);
    return made;
  }

  // To what has that width.
  HeedDecoderAttention attention(const HeedDecoderStack& s, int64_t width) {
    const int64_t attended = s.heads * s.value_dim;
    HeedDecoderAttention made{};
    made.query = dense(s.width, s.heads * s.head_dim), made.key = dense(width, s.kv_heads * s.head_dim);
    made.value = dense(width, s.kv_heads * s.value_dim), made.output = dense(attended, s.width);
    made.gate = dense(s.width, attended);
    made.query_norm = norm(s.head_dim), made.key_norm = norm(s.head_dim);
    made.sinks = weights(next(), s.heads);
    made.soft_cap = number(), made.window = size();
    return made;
  }

  double number() {
    const Tensor& numbers = inputs_[kNumbers];
    if (next_number_ >= numbers.dim(0)) fail("there must be as many `numbers` as are asked for" + numbers.described());
    return numbers.data<double>()[next_number_++];
  }
  int64_t size() {
    const double size = number();
    if (!(size >= 0 && size <= 1e9))
      fail("a size of the decoder must be in [0, 1e9]. Received: " + std::to_string(size));
    return static_cast<int64_t>(size);
  }

  // The tensor of the next slot, or null.
  const Tensor* next() {
    const Tensor& slots = inputs_[kSlots];
    if (next_ >= slots.dim(0)) fail("there must be a slot for each weight of the decoder" + slots.described());
    const int64_t slot = slots.data<int64_t>()[next_++];
    if (slot >= static_cast<int64_t>(inputs_.size()) - kWeights) fail("a slot names a weight that is not there");
    return slot < 0 ? nullptr : &inputs_[static_cast<size_t>(slot + kWeights)];
  }

  // The numbers of a weight, which must be so many, or null.
  static const float* weights(const Tensor* x, int64_t count) {
    if (x && x->count() != count)
      fail("a weight of the decoder must hold " + std::to_string(count) + " numbers" + x->described());
    return x ? x->data<float>() : nullptr;
  }

  HeedNorm norm(int64_t width) {
    const float* gamma = weights(next(), width);
    const float* beta = weights(next(), width);
    const double epsilon = number();
    return {gamma, beta, epsilon, size() != 0};
  }

  // With `outputs` 0 there are as many as the weight has.
  HeedDense dense(int64_t inputs, int64_t outputs, bool transposed = false) {
    const Tensor* weight = next();
    if (weight && outputs == 0 && inputs > 0) outputs = weight->count() / inputs;
    const float* of_weight = weights(weight, inputs * outputs);
    return {of_weight, weights(next(), outputs), inputs, outputs, transposed};
  }

  const std::vector<Tensor>& inputs_;
  int64_t next_ = 0, next_number_ = 0;
  std::vector<HeedDecoderLayer> layers_, encoder_layers_;
  HeedDecoderStack encoder_{};
};

// Packed weights, and what they were packed from.
struct Packed {
  std::vector<int64_t> version;
  std::vector<Tensor> weights;
  HeedDecoder* decoder = nullptr;
  // Sizes of the decoder and of the encoder, if there is one.
  int64_t width = 0, heads = 0, head_dim = 0, source_width = 0, source_heads = 0, source_head_dim = 0;

  Packed() = default;
  Packed(const Packed&) = delete;
  ~Packed() { heed_decoder_free(decoder); }
};

// What tells the stacks of calls apart: numbers, slots, and where the weights lie.
std::vector<int64_t> version_of(const std::vector<Tensor>& inputs) {
  const Tensor &slots = inputs[kSlots], &numbers = inputs[kNumbers];
  const int64_t* sizes = inputs[kSizes].data<int64_t>();
  std::vector<int64_t> version = {sizes[kEncodes], sizes[kPack], inputs[kEncoded].dim(2), slots.dim(0)};
  version.insert(version.end(), slots.data<int64_t>(), slots.data<int64_t>() + slots.dim(0));
  for (int64_t i = 0; i < numbers.dim(0); ++i) {
    int64_t bits = 0;
    std::memcpy(&bits, numbers.data<double>() + i, sizeof(bits));
    version.push_back(bits);
  }
  for (size_t i = kWeights; i < inputs.size(); ++i) {
    version.push_back(reinterpret_cast<intptr_t>(inputs[i].data()));
    for (int64_t size : inputs[i].dims()) version.push_back(size);
  }
  return version;
}

// All that is packed in this process, so that the graphs of one model share it; and the lock of it and of every
// `Kernel`. Never destroyed: TensorFlow may delete kernels while the process ends.
struct Shared {
  std::mutex mutex;
  std::vector<std::weak_ptr<const Packed>> packed;
};
Shared& shared() {
  static Shared& made = *new Shared;
  return made;
}

// One op of one graph.
struct Kernel {
  std::shared_ptr<const Packed> packed;
};

// The packed form of the weights of this call. Takes them out of the inputs where it must be made.
std::shared_ptr<const Packed> packed_for(Kernel& kernel, std::vector<Tensor>& inputs) {
  std::vector<int64_t> version = version_of(inputs);
  Shared& all = shared();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (kernel.packed && kernel.packed->version == version) return kernel.packed;
  kernel.packed.reset();  // first, so that two versions need not be there at once
  std::vector<std::weak_ptr<const Packed>> alive;
  for (const auto& one : all.packed)
    if (const auto there = one.lock()) {
      alive.push_back(one);
      if (there->version == version) kernel.packed = there;
    }
  all.packed.swap(alive);
  if (!kernel.packed) {
    const auto made = std::make_shared<Packed>();
    const Stacks stacks(inputs);
    check(heed_decoder_make(&stacks.decoder, &made->decoder));
    made->version = std::move(version);
    made->width = stacks.decoder.width, made->heads = stacks.decoder.heads, made->head_dim = stacks.decoder.head_dim;
    if (const HeedDecoderStack* encoder = stacks.decoder.encoder) {
      made->source_width = encoder->width, made->source_heads = encoder->heads;
      made->source_head_dim = encoder->head_dim;
    }
    made->weights.assign(std::make_move_iterator(inputs.begin() + kWeights), std::make_move_iterator(inputs.end()));
    kernel.packed = made;
    all.packed.push_back(made);
  }
  return kernel.packed;
}

// The numbers of an input that may be empty: then there are none.
template <class T = float>
const T* optional(const Tensor& x, const char* name, const Dims& dims) {
  if (x.count() == 0) return nullptr;
  if (x.dims() != dims)
    fail(std::string("`") + name + "` must fit the other inputs and the weights, which makes it " + described(dims) +
         x.described());
  return x.data<T>();
}

void run(void* state, TF_OpKernelContext* context) {
  guarded(context, [&] {
    std::vector<Tensor> inputs = inputs_of(context);
    const Tensor &source = inputs[kSource], &encoded = inputs[kEncoded];
    if (inputs[kSizes].dims() != Dims{kSizeCount} || inputs[kSettings].dims() != Dims{kSettingCount} ||
        inputs[kSlots].rank() != 1 || inputs[kNumbers].rank() != 1)
      fail("sizes, settings, slots and numbers must have shapes (" + std::to_string(kSizeCount) + ",), (" +
           std::to_string(kSettingCount) + ",), (n,) and (n,)");
    if (source.rank() != 2) fail("`source` must have shape (B, S)" + source.described());
    if (encoded.rank() != 3) fail("`encoded` must have shape (B, S, D)" + encoded.described());
    const int64_t* sizes = inputs[kSizes].data<int64_t>();
    const double* settings = inputs[kSettings].data<double>();
    const int64_t batch = source.dim(0), positions = source.dim(1), length = sizes[kLength];
    if (length < 1) fail("`length` must be positive. Received: " + std::to_string(length));
    const auto packed = packed_for(*static_cast<Kernel*>(state), inputs);
    const int64_t width = packed->width, heads = packed->heads, head_dim = packed->head_dim;
    const int64_t source_width = packed->source_width, source_heads = packed->source_heads;

    HeedDecoding decoding{};
    decoding.batch = batch, decoding.length = length, decoding.source_length = positions;
    decoding.source = source.data<int32_t>();
    decoding.encoded = optional(encoded, "encoded", {batch, positions, encoded.dim(2)});
    decoding.source_mask = optional<uint8_t>(inputs[kMask], "source_mask", {batch, positions});
    decoding.uniform = optional(inputs[kUniform], "uniform", {batch, length});
    decoding.positions = optional(inputs[kPositions], "positions", {length, width});
    decoding.rotation = optional(inputs[kRotation], "rotation", {length, head_dim});
    decoding.relative_bias = optional(inputs[kBias], "relative_bias", {heads, length});
    decoding.source_positions = optional(inputs[kSourcePositions], "source_positions", {positions, source_width});
    decoding.source_rotation =
        optional(inputs[kSourceRotation], "source_rotation", {positions, packed->source_head_dim});
    decoding.source_relative_bias =
        optional(inputs[kSourceBias], "source_relative_bias", {source_heads, 2 * positions});
    decoding.prompt = optional<int32_t>(inputs[kPrompt], "prompt", {batch, length});
    decoding.pad_token = static_cast<int32_t>(sizes[kPad]), decoding.start_token = static_cast<int32_t>(sizes[kStart]);
    decoding.end_token = static_cast<int32_t>(sizes[kEnd]), decoding.search = static_cast<int32_t>(sizes[kSearch]);
    decoding.temperature = settings[kTemperature], decoding.top_p = settings[kTopP], decoding.top_k = sizes[kTopK];
    decoding.beams = static_cast<int32_t>(std::min<int64_t>(sizes[kBeams], INT32_MAX));
    decoding.length_penalty = settings[kLengthPenalty];
    decoding.results = static_cast<int32_t>(std::min<int64_t>(sizes[kResults], INT32_MAX));
    const bool scored = sizes[kScored] != 0;
    const int64_t results = std::max<int64_t>(sizes[kResults], 1);
    const Tensor tokens = allocated(context, 0, kInt32, {batch, results, length}, sizeof(int32_t));
    const Tensor scores = allocated(context, 1, kFloat, scored ? Dims{batch, results} : Dims{0, 0}, sizeof(float));
    const int threads =
        sizes[kThreads] >= 1 ? static_cast<int>(std::min<int64_t>(sizes[kThreads], 65536)) : heed_available_threads();
    check(heed_decode(packed->decoder, &decoding, tokens.data<int32_t>(), scored ? scores.data<float>() : nullptr,
                      threads));
  });
}

__attribute__((constructor)) void register_decoder() {
  if (!bind()) return;
  const Status status;
  TF_OpDefinitionBuilder* op = TF_NewOpDefinitionBuilder("HeedDecode");
  TF_OpDefinitionBuilderAddAttr(op, "W: int >= 1");
  for (const char* input :
       {"source: int32", "source_mask: bool", "encoded: float", "uniform: float", "positions: float", "rotation: float",
        "relative_bias: float", "source_positions: float", "source_rotation: float", "source_relative_bias: float",
        "prompt: int32", "sizes: int64", "settings: double", "numbers: double", "slots: int64", "weights: W * float"})
    TF_OpDefinitionBuilderAddInput(op, input);
  for (const char* output : {"tokens: int32", "scores: float"}) TF_OpDefinitionBuilderAddOutput(op, output);
  TF_OpDefinitionBuilderSetShapeInferenceFunction(op, TF_ShapeInferenceContextSetUnknownShape);
  TF_RegisterOpDefinition(op, status.get());
  TF_KernelBuilder* kernel = TF_NewKernelBuilder(
      "HeedDecode", "CPU", [](TF_OpKernelConstruction*) -> void* { return new Kernel; }, run,
      [](void* state) {
        const std::unique_ptr<Kernel> made(static_cast<Kernel*>(state));
        const std::lock_guard<std::mutex> lock(shared().mutex);
        made->packed.reset();
      });
  TF_RegisterKernelBuilder("HeedDecode", kernel, status.get());
  if (!status.ok()) std::fprintf(stderr, "heed: TensorFlow did not take the op HeedDecode\n");
}

}  // namespace
}  // namespace heed::tf
