// TensorFlow ops for decoding in a graph, token by token. No arithmetic.
#include "registration.h"

namespace heed::tf {
namespace {

// The form of HeedProduct. Flags are 0 or 1.
struct ProductSettings {
  double threads, transposed;
};

// HeedProduct: x (R, K), weights (G, K, N) or, `transposed`, (G, N, K).
void run_product(void* form, TF_OpKernelContext* context) {
  guarded(context, [&] {
    const Status status;
    const Tensor x = input_of(context, status, 0), weights = input_of(context, status, 1);
    const auto& settings = *static_cast<const Numbers<ProductSettings>*>(form);
    expect(x.shape.rank() == 2, "x", "must have shape (R, K)", x);
    expect(weights.shape.rank() == 3, "weights", "must have shape (G, K, N)", weights);
    const bool transposed = settings.transposed != 0;
    const int64_t rows = x.shape[0], groups = weights.shape[0], columns = weights.shape[transposed ? 1 : 2];
    expect(weights.shape[transposed ? 2 : 1] == x.shape[1], "weights", "must have as many rows as `x` has features (K)",
           weights);
    const HeedProduct call{{x.type, rows, x.shape[1]}, groups, columns, transposed, x.data, weights.data, nullptr};
    const Tensor y = allocated(context, status, 0, x.type, {rows, groups, columns});
    check(heed_product(&call, y.data, settings.thread_count()));
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
      shape = inputs[0].shape, cache = inputs[0].data;
      Shape expected = shape, given = update.shape;
      expect(shape.rank() >= 2 && given.rank() == shape.rank(), "update",
             "must have the same rank as `cache`, 2 or more", update);
      expected[1] = given[1];
      expect(given == expected && given[1] <= shape[1], "update",
             "must have the shape of `cache` but for fewer positions", update);
      expect(index.shape.rank() == 0, "index", "must be a number", index);
      call.batch = shape[0], call.length = shape[1], call.written = given[1], call.index = *index.as<int32_t>();
      call.bytes = static_cast<int64_t>(bytes_of(inputs[0].type));
      call.bytes = times(call.bytes, Shape(shape.begin() + 2, shape.end()).count());
    }
    const auto [result, is_cache] = allocated_over(context, status, 0, 0, shape);
    const std::vector<Tensor> inputs = inputs_of(context, status);
    call.cache = is_cache ? result.data : cache, call.update = inputs[1].data;
    check(heed_cache_write(&call, result.data));
  });
}

}  // namespace

void register_decode_ops() {
  // N is where the form says.
  register_form<ProductSettings>("HeedProduct", TF_ShapeInferenceContextSetUnknownShape, run_product, {"form: string"},
                                 {"x: T", "weights: T"}, {"y: T"});
  const Types any{"T: {float, double, bfloat16, half, int32}", {kFloat32, kFloat64, kBfloat16, kFloat16, kInt32}};
  register_op("HeedCacheWrite", shapes_of_first<1>, run_cache_write, {}, {"cache: T", "update: T", "index: int32"},
              {"result: T"}, nullptr, nullptr, any);
}

}  // namespace heed::tf
