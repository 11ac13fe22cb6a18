// TensorFlow ops for decoding in a graph, token by token. No arithmetic.
#include "registration.h"

namespace heed::tf {
namespace {

// The form of HeedProduct. Flags are 0 or 1.
struct ProductSettings {
  double threads, transposed;
};

// HeedProduct: x (R, K), weights (G, K, N) or, `transposed`, (G, N, K), one bias (G, N) or none.
void run_product(void* form, TF_OpKernelContext* context) {
  guarded(context, [&] {
    constexpr int kBias = 2;
    const Status status;
    const std::vector<Tensor> inputs = inputs_of(context, status);
    const Tensor &x = inputs[0], &weights = inputs[1];
    const bool has_bias = inputs.size() > kBias;
    if (inputs.size() > kBias + 1) fail("there must be one bias or none");
    const auto& settings = *static_cast<const Numbers<ProductSettings>*>(form);
    if (x.rank() != 2) fail("`x` must have shape (R, K)" + x.received());
    if (weights.rank() != 3) fail("`weights` must have shape (G, K, N)" + weights.received());
    const bool transposed = settings.transposed != 0;
    const int64_t groups = weights.dim(0), columns = weights.dim(transposed ? 1 : 2);
    if (weights.dim(transposed ? 2 : 1) != x.dim(1))
      fail("`weights` must have as many rows as `x` has features (K)" + weights.received());
    if (has_bias && inputs[kBias].shape() != Shape{groups, columns})
      fail("`bias` must have shape (G, N)" + inputs[kBias].received());
    const HeedProduct call{
        {x.type(), x.dim(0), x.dim(1)},           groups, columns, transposed, x.data(), weights.data(),
        has_bias ? inputs[kBias].data() : nullptr};
    const Tensor y = allocated(context, status, 0, x.type(), {x.dim(0), groups, columns});
    check(heed_product(&call, y.data(), settings.thread_count()));
  });
}

// HeedCacheWrite: a cache (B, L, ...), an update (B, T, ...), and the position where it is written. The result reuses
// the buffer of the cache if nobody else holds it: then the update alone is copied.
void run_cache_write(void*, TF_OpKernelContext* context) {
  guarded(context, [&] {
    const Status status;
    HeedCacheWrite call{};
    Shape shape;
    const void* cache = nullptr;
    {
      // Released before the result is allocated: a buffer that is held is not reused.
      const std::vector<Tensor> inputs = inputs_of(context, status);
      const Tensor &update = inputs[1], &index = inputs[2];
      shape = inputs[0].shape(), cache = inputs[0].data();
      Shape expected = shape, given = update.shape();
      if (shape.rank() < 2 || given.rank() != shape.rank())
        fail("`cache` and `update` must have the same rank, 2 or more" + update.received());
      expected[1] = given[1];
      if (given != expected || given[1] > shape[1])
        fail("`update` must have the shape of `cache` but for fewer positions" + update.received());
      if (index.rank() != 0) fail("`index` must be a number" + index.received());
      call.batch = shape[0], call.length = shape[1], call.written = given[1], call.index = *index.data<int32_t>();
      call.bytes = static_cast<int64_t>(bytes_of(inputs[0].type()));
      call.bytes = times(call.bytes, Shape(shape.begin() + 2, shape.end()).count());
    }
    const auto [result, is_cache] = allocated_over(context, status, 0, 0, shape);
    const std::vector<Tensor> inputs = inputs_of(context, status);
    call.cache = is_cache ? result.data() : cache, call.update = inputs[1].data();
    check(heed_cache_write(&call, result.data()));
  });
}

}  // namespace

void register_decode_ops() {
  // N is where the form says.
  register_op("HeedProduct", TF_ShapeInferenceContextSetUnknownShape, run_product, {"B: int >= 0", "form: string"},
              {"x: T", "weights: T", "bias: B * T"}, {"y: T"}, create<Numbers<ProductSettings>>,
              destroy<Numbers<ProductSettings>>);
  const Types any{"T: {float, double, bfloat16, half, int32}", {kFloat32, kFloat64, kBfloat16, kFloat16, kInt32}};
  register_op("HeedCacheWrite", shapes_of_first<1>, run_cache_write, {}, {"cache: T", "update: T", "index: int32"},
              {"result: T"}, nullptr, nullptr, any);
}

}  // namespace heed::tf
