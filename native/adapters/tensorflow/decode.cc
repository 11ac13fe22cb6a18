// The decoder engine as an op of TensorFlow. No arithmetic.
//
// HeedDecode takes
//   source         int32 (B, S)
//   source_mask    bool (B, S)
//   encoded        float (B, S, encoded width), or (0, 0, 0) if there is an encoder
//   uniform        float (B, L); here and below, an empty tensor stands for none
//   positions, rotation, relative_bias                       float (L, D), (L, H), (N, L)
//   source_positions, source_rotation, source_relative_bias  float (S, D), (S, H), (N, 2 S)
//   prompt         int32 (B, L)
//   stream         int64 (): the number of a stream of token_stream.h that gets the tokens of one source
//   values         double (n): of the n fields that the attribute `names` lists, a line each; see decoder_fields.h
//   weights        floats of any shape
// and returns tokens, int32 (B, N, L), and scores, float (B, N), or (0, 0) if the search returns none.
//
// Weights are packed once for each version of their variables. A version is a buffer: the packed weights hold on to the
// tensors, and nobody writes to a buffer that others hold. So the same address means the same numbers.
#include <pthread.h>

#include <cstdio>
#include <cstring>
#include <mutex>

#include "decoder_fields.h"
#include "settings.h"
#include "token_stream.h"

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
  kStream,
  kValues,
  kWeights
};

// Packed weights, and what they were packed from.
struct Packed {
  std::string names;
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
  Names stacks, search;
  std::string stack_names;  // those of `stacks`, in the order of the values
  std::vector<size_t> stack_places;
  int64_t count = 0;  // of all names
  std::shared_ptr<const Packed> packed;

  // The names of fields, a line each.
  explicit Kernel(const std::string& names) {
    for (size_t begin = 0, end = 0; begin < names.size(); begin = end + 1) {
      end = std::min(names.find('\n', begin), names.size());
      const std::string name = names.substr(begin, end - begin);
      const size_t place = static_cast<size_t>(count++);
      if (name.rfind("search/", 0) == 0) {
        search.emplace(name, place);
      } else if (stacks.emplace(name, place).second) {
        stack_names += name + '\n';
        stack_places.push_back(place);
      }
    }
  }
};

// Tells the stacks of calls with the same names apart: by their values, and by the addresses and shapes of the weights.
std::vector<int64_t> version_of(const Kernel& kernel, const std::vector<Tensor>& inputs) {
  std::vector<int64_t> version = {inputs[kEncoded].dim(2)};
  for (size_t place : kernel.stack_places) {
    int64_t bits = 0;
    std::memcpy(&bits, inputs[kValues].data<double>() + place, sizeof(bits));
    version.push_back(bits);
  }
  for (size_t i = kWeights; i < inputs.size(); ++i) {
    version.push_back(reinterpret_cast<intptr_t>(inputs[i].data()));
    for (int64_t size : inputs[i].dims()) version.push_back(size);
  }
  return version;
}

// The packed weights of this call. Moves the weights out of the inputs if it packs them.
std::shared_ptr<const Packed> packed_for(Kernel& kernel, std::vector<Tensor>& inputs) {
  std::vector<int64_t> version = version_of(kernel, inputs);
  const std::lock_guard<std::mutex> lock(shared.mutex);
  if (kernel.packed && kernel.packed->version == version) return kernel.packed;
  kernel.packed.reset();  // first, so that two versions need not be there at once
  std::vector<std::weak_ptr<const Packed>> alive;
  for (const auto& one : shared.packed)
    if (const auto there = one.lock()) {
      alive.push_back(one);
      if (there->names == kernel.stack_names && there->version == version) kernel.packed = there;
    }
  shared.packed.swap(alive);
  if (!kernel.packed) {
    const auto made = std::make_shared<Packed>();
    const StackFields stacks(kernel.stacks, inputs[kValues], inputs.data() + kWeights,
                             static_cast<int64_t>(inputs.size()) - kWeights, inputs[kEncoded].dim(2));
    check(heed_decoder_make(&stacks.decoder, &made->decoder));
    made->names = kernel.stack_names, made->version = std::move(version);
    made->sizes = stacks.decoder, made->encoder_sizes = stacks.encoder;
    made->weights.assign(std::make_move_iterator(inputs.begin() + kWeights), std::make_move_iterator(inputs.end()));
    kernel.packed = made;
    shared.packed.push_back(made);
  }
  return kernel.packed;
}

// The stream that gets the tokens, or null.
std::shared_ptr<TokenStream> stream_of(const Tensor& number) {
  if (number.count() == 0) return nullptr;
  auto stream = find_stream(*number.data<int64_t>());
  if (!stream)
    fail("`stream` must be the number of an open stream. Received: " + std::to_string(*number.data<int64_t>()));
  return stream;
}

// The numbers of an input, or null if it is empty.
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
    Kernel& kernel = *static_cast<Kernel*>(state);
    const Status status;
    std::vector<Tensor> inputs = inputs_of(context, status);
    const Tensor &source = inputs[kSource], &encoded = inputs[kEncoded], &values = inputs[kValues];
    if (values.dims() != Dims{kernel.count} ||
        static_cast<int64_t>(kernel.stacks.size() + kernel.search.size()) != kernel.count)
      fail("`values` must have a number for each of the names, which must differ" + values.described());
    if (source.rank() != 2) fail("`source` must have shape (B, S)" + source.described());
    if (encoded.rank() != 3) fail("`encoded` must have shape (B, S, D)" + encoded.described());
    const int64_t batch = source.dim(0), positions = source.dim(1);
    // Before any of these sizes is multiplied: an empty tensor may have any.
    if (batch > HEED_MOST_BATCH || positions > HEED_MOST_LENGTH)
      fail("`source` must have at most 2^31 rows of at most 2^20 tokens" + source.described());
    Search search{};
    SearchFields(kernel.search, values, search);
    const int64_t length = search.length;
    if (length < 1) fail("`search/length` must be positive. Received: " + std::to_string(length));
    const auto packed = packed_for(kernel, inputs);
    const HeedDecoderStack &decoder = packed->sizes, &encoder = packed->encoder_sizes;

    search.batch = batch, search.source_length = positions;
    search.source = source.data<int32_t>();
    search.encoded = optional(encoded, "encoded", {batch, positions, encoded.dim(2)});
    search.source_mask = optional<uint8_t>(inputs[kMask], "source_mask", {batch, positions});
    search.uniform = optional(inputs[kUniform], "uniform", {batch, length});
    search.positions = optional(inputs[kPositions], "positions", {length, decoder.width});
    search.rotation = optional(inputs[kRotation], "rotation", {length, decoder.head_dim});
    search.relative_bias = optional(inputs[kBias], "relative_bias", {decoder.heads, length});
    search.source_positions = optional(inputs[kSourcePositions], "source_positions", {positions, encoder.width});
    search.source_rotation = optional(inputs[kSourceRotation], "source_rotation", {positions, encoder.head_dim});
    search.source_relative_bias = optional(inputs[kSourceBias], "source_relative_bias", {encoder.heads, 2 * positions});
    search.prompt = optional<int32_t>(inputs[kPrompt], "prompt", {batch, length});
    const std::shared_ptr<TokenStream> stream = stream_of(inputs[kStream]);
    if (stream) {
      if (batch != 1) fail("`source` must have one row where its tokens are streamed" + source.described());
      stream->reserve(length);
      search.listener = stream.get();
      search.on_token = [](void* listener, int64_t, int32_t token) -> int32_t {
        return static_cast<TokenStream*>(listener)->write(token);
      };
    }
    const int64_t results = std::max<int64_t>(search.results, 1);
    const bool scored = search.return_scores != 0;
    const Tensor tokens = allocated(context, status, 0, kInt32, {batch, results, length}, sizeof(int32_t));
    const Tensor scores =
        allocated(context, status, 1, kFloat, scored ? Dims{batch, results} : Dims{0, 0}, sizeof(float));
    check(heed_decode(packed->decoder, &search, tokens.data<int32_t>(), scored ? scores.data<float>() : nullptr,
                      thread_count(search.threads)));
  });
}

void* create(TF_OpKernelConstruction* construction) {
  const Status status;
  int32_t list_size = 0, size = 0;
  TF_OpKernelConstruction_GetAttrSize(construction, "names", &list_size, &size, status.get());
  std::string names(static_cast<size_t>(std::max(size, 0)), '\0');
  if (status.ok())
    TF_OpKernelConstruction_GetAttrString(construction, "names", names.data(), names.size(), status.get());
  return new Kernel(names);  // of no names, the fields are missing
}

__attribute__((constructor)) void register_decoder() {
  if (!bind()) return;
  const Status status;
  TF_OpDefinitionBuilder* op = TF_NewOpDefinitionBuilder("HeedDecode");
  for (const char* attribute : {"W: int >= 1", "names: string"}) TF_OpDefinitionBuilderAddAttr(op, attribute);
  for (const char* input :
       {"source: int32", "source_mask: bool", "encoded: float", "uniform: float", "positions: float", "rotation: float",
        "relative_bias: float", "source_positions: float", "source_rotation: float", "source_relative_bias: float",
        "prompt: int32", "stream: int64", "values: double", "weights: W * float"})
    TF_OpDefinitionBuilderAddInput(op, input);
  for (const char* output : {"tokens: int32", "scores: float"}) TF_OpDefinitionBuilderAddOutput(op, output);
  TF_OpDefinitionBuilderSetShapeInferenceFunction(op, TF_ShapeInferenceContextSetUnknownShape);
  TF_RegisterOpDefinition(op, status.get());
  TF_KernelBuilder* kernel = TF_NewKernelBuilder("HeedDecode", "CPU", create, run, [](void* state) {
    const std::unique_ptr<Kernel> made(static_cast<Kernel*>(state));
    const std::lock_guard<std::mutex> lock(shared.mutex);
    made->packed.reset();
  });
  TF_RegisterKernelBuilder("HeedDecode", kernel, status.get());
  if (!status.ok()) std::fprintf(stderr, "heed: TensorFlow did not take the op HeedDecode\n");
}

}  // namespace
}  // namespace heed::tf
