// The decoder engine as an op of TensorFlow. No arithmetic.
//
// HeedDecode takes
//   encoded        float (B, S, width of what is encoded); (B, 0, 0) where nothing is
//   source_mask    bool (B, S)
//   uniform        float (B, L); here and below, an empty tensor stands for none
//   positions      float (L, D)
//   rotation       float (L, H)
//   distance_bias  float (N, L)
//   sizes          int64, see Sizes
//   settings       double, see Settings
//   slots          int64: for each weight of the stack, in the order in which `Slots` asks for them, which of `weights`
//                  it is; -1 for none
//   weights        floats of any shape
// and gives tokens, int32 (B, L).
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

enum Input { kEncoded, kMask, kUniform, kPositions, kRotation, kDistanceBias, kSizes, kSettings, kSlots, kWeights };

// The numbers in `sizes` and `settings`, in their order.
enum Sizes {
  kLength,
  kHeads,
  kKvHeads,
  kHeadDim,
  kValueDim,
  kNormFirst,
  kActivation,
  kLayers,
  kTransposedLogits,
  kPad,
  kStart,
  kEnd,
  kSearch,
  kTopK,
  kBeams,
  kThreads,
  kSizeCount
};
enum Settings { kEmbeddingScale, kEpsilon, kTemperature, kTopP, kLengthPenalty, kSettingCount };

// The stack as heed_decoder.h describes it, made of an op's inputs.
class Slots {
 public:
  explicit Slots(const std::vector<Tensor>& inputs) : inputs_(inputs), sizes_(inputs[kSizes].data<int64_t>()) {
    const double* settings = inputs[kSettings].data<double>();
    epsilon_ = settings[kEpsilon];
    stack.heads = sizes_[kHeads], stack.kv_heads = sizes_[kKvHeads];
    stack.head_dim = sizes_[kHeadDim], stack.value_dim = sizes_[kValueDim];
    stack.encoded_width = inputs[kEncoded].dim(2);
    stack.norm_first = sizes_[kNormFirst] != 0, stack.activation = static_cast<int32_t>(sizes_[kActivation]);
    stack.embedding_scale = settings[kEmbeddingScale];
    const Tensor* embedding = next();
    if (!embedding || embedding->rank() != 2) fail("the embedding must have rank 2");
    stack.vocabulary = embedding->dim(0), stack.width = embedding->dim(1), stack.embedding = embedding->data<float>();
    stack.final_norm = norm();
    stack.logits = dense(stack.width, stack.vocabulary, sizes_[kTransposedLogits] != 0);
    for (int64_t i = 0; i < sizes_[kLayers]; ++i) add_layer();
    if (next_ != inputs[kSlots].dim(0))
      fail("there must be a slot for each weight of the decoder" + inputs[kSlots].described());
    stack.layers = layers_.data(), stack.layer_count = static_cast<int32_t>(layers_.size());
  }

  HeedDecoderStack stack{};

 private:
  void add_layer() {
    const int64_t queries = stack.heads * stack.head_dim, keys = stack.kv_heads * stack.head_dim;
    const int64_t attended = stack.heads * stack.value_dim, values = stack.kv_heads * stack.value_dim;
    const int64_t width = stack.width, encoded = stack.encoded_width;
    HeedDecoderLayer layer{};
    layer.self_norm = norm(), layer.cross_norm = norm(), layer.feed_forward_norm = norm();
    layer.query = dense(width, queries), layer.key = dense(width, keys), layer.value = dense(width, values);
    layer.output = dense(attended, width);
    layer.cross_query = dense(width, queries), layer.cross_key = dense(encoded, keys);
    layer.cross_value = dense(encoded, values), layer.cross_output = dense(attended, width);
    layer.hidden = dense(width, 0), layer.back = dense(layer.hidden.outputs, width);
    layers_.push_back(layer);
  }

  // The tensor of the next slot, or null.
  const Tensor* next() {
    const Tensor& slots = inputs_[kSlots];
    if (next_ >= slots.dim(0)) fail("there must be a slot for each weight of the decoder" + slots.described());
    const int64_t slot = slots.data<int64_t>()[next_++];
    if (slot >= static_cast<int64_t>(inputs_.size()) - kWeights) fail("a slot names a weight that is not there");
    return slot < 0 ? nullptr : &inputs_[static_cast<size_t>(slot + kWeights)];
  }

  // The numbers of the next slot, which must be so many, or null.
  const float* numbers(int64_t count) {
    const Tensor* x = next();
    if (x && x->count() != count)
      fail("a weight of the decoder must hold " + std::to_string(count) + " numbers" + x->described());
    return x ? x->data<float>() : nullptr;
  }

  HeedNorm norm() {
    const float* gamma = numbers(stack.width);
    return {gamma, numbers(stack.width), epsilon_};
  }

  // With `outputs` 0 there are as many as the weight has.
  HeedDense dense(int64_t inputs, int64_t outputs, bool transposed = false) {
    const Tensor* weight = next();
    if (weight && outputs == 0 && inputs > 0) outputs = weight->count() / inputs;
    if (weight && weight->count() != inputs * outputs)
      fail("a weight of the decoder must hold " + std::to_string(inputs * outputs) + " numbers" + weight->described());
    return {weight ? weight->data<float>() : nullptr, numbers(outputs), inputs, outputs, transposed};
  }

  const std::vector<Tensor>& inputs_;
  const int64_t* sizes_;
  double epsilon_ = 0;
  int64_t next_ = 0;
  std::vector<HeedDecoderLayer> layers_;
};

// Packed weights, and what they were packed from.
struct Packed {
  std::vector<int64_t> version;
  std::vector<Tensor> weights;
  HeedDecoder* decoder = nullptr;
  int64_t width = 0;

  Packed() = default;
  Packed(const Packed&) = delete;
  ~Packed() { heed_decoder_free(decoder); }
};

// What tells the stacks of calls apart: sizes, slots, and where the weights lie.
std::vector<int64_t> version_of(const std::vector<Tensor>& inputs) {
  const int64_t *sizes = inputs[kSizes].data<int64_t>(), *slots = inputs[kSlots].data<int64_t>();
  std::vector<int64_t> version(sizes + kHeads, sizes + kPad);
  version.insert(version.end(), slots, slots + inputs[kSlots].dim(0));
  version.push_back(inputs[kEncoded].dim(2));
  for (int setting : {kEmbeddingScale, kEpsilon}) {
    int64_t bits = 0;
    std::memcpy(&bits, inputs[kSettings].data<double>() + setting, sizeof(bits));
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
    const Slots slots(inputs);
    check(heed_decoder_make(&slots.stack, &made->decoder));
    made->version = std::move(version), made->width = slots.stack.width;
    made->weights.assign(std::make_move_iterator(inputs.begin() + kWeights), std::make_move_iterator(inputs.end()));
    kernel.packed = made;
    all.packed.push_back(made);
  }
  return kernel.packed;
}

// The numbers of an input that may be empty: then there are none.
const float* optional(const Tensor& x, const char* name, const Dims& dims) {
  if (x.count() == 0) return nullptr;
  if (x.dims() != dims) fail(std::string("`") + name + "` does not fit the other inputs" + x.described());
  return x.data<float>();
}

void run(void* state, TF_OpKernelContext* context) {
  guarded(context, [&] {
    std::vector<Tensor> inputs = inputs_of(context);
    const Tensor &encoded = inputs[kEncoded], &mask = inputs[kMask];
    if (inputs[kSizes].dims() != Dims{kSizeCount} || inputs[kSettings].dims() != Dims{kSettingCount} ||
        inputs[kSlots].rank() != 1)
      fail("sizes, settings and slots must have shapes (" + std::to_string(kSizeCount) + ",), (" +
           std::to_string(kSettingCount) + ",) and (n,)");
    if (encoded.rank() != 3) fail("`encoded` must have shape (B, S, D)" + encoded.described());
    const int64_t* sizes = inputs[kSizes].data<int64_t>();
    const double* settings = inputs[kSettings].data<double>();
    const int64_t batch = encoded.dim(0), length = sizes[kLength], heads = sizes[kHeads];
    if (mask.dims() != Dims{batch, encoded.dim(1)}) fail("`source_mask` must have shape (B, S)" + mask.described());
    if (length < 1) fail("`length` must be positive. Received: " + std::to_string(length));
    const auto packed = packed_for(*static_cast<Kernel*>(state), inputs);

    HeedDecoding decoding{};
    decoding.batch = batch, decoding.length = length, decoding.source_length = encoded.dim(1);
    decoding.encoded = encoded.data<float>(), decoding.source_mask = mask.data<uint8_t>();
    decoding.positions = optional(inputs[kPositions], "positions", {length, packed->width});
    decoding.rotation = optional(inputs[kRotation], "rotation", {length, sizes[kHeadDim]});
    decoding.distance_bias = optional(inputs[kDistanceBias], "distance_bias", {heads, length});
    decoding.uniform = optional(inputs[kUniform], "uniform", {batch, length});
    decoding.pad_token = static_cast<int32_t>(sizes[kPad]), decoding.start_token = static_cast<int32_t>(sizes[kStart]);
    decoding.end_token = static_cast<int32_t>(sizes[kEnd]), decoding.search = static_cast<int32_t>(sizes[kSearch]);
    decoding.temperature = settings[kTemperature], decoding.top_p = settings[kTopP], decoding.top_k = sizes[kTopK];
    decoding.beams = static_cast<int32_t>(std::min<int64_t>(sizes[kBeams], INT32_MAX));
    decoding.length_penalty = settings[kLengthPenalty];
    const Tensor tokens = allocated(context, 0, kInt32, {batch, length}, sizeof(int32_t));
    const int threads =
        sizes[kThreads] >= 1 ? static_cast<int>(std::min<int64_t>(sizes[kThreads], 65536)) : heed_available_threads();
    check(heed_decode(packed->decoder, &decoding, tokens.data<int32_t>(), threads));
  });
}

__attribute__((constructor)) void register_decoder() {
  if (!bind()) return;
  const Status status;
  TF_OpDefinitionBuilder* op = TF_NewOpDefinitionBuilder("HeedDecode");
  TF_OpDefinitionBuilderAddAttr(op, "W: int >= 1");
  for (const char* input :
       {"encoded: float", "source_mask: bool", "uniform: float", "positions: float", "rotation: float",
        "distance_bias: float", "sizes: int64", "settings: double", "slots: int64", "weights: W * float"})
    TF_OpDefinitionBuilderAddInput(op, input);
  TF_OpDefinitionBuilderAddOutput(op, "tokens: int32");
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
