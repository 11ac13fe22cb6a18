#include "c_api.h"

#include <algorithm>

#include "instruction_sets.h"
#include "thread_pool.h"

namespace {
// No exception may leave the library; all that can be thrown says that memory is short.
template <class Function>
const char* guarded(const Function& function) {
  try {
    return function();
  } catch (...) {
    return "out of memory";
  }
}

// More would only cost memory: threads live on, and each needs scratch.
int within_reason(int threads) { return std::min(threads, 256); }
}  // namespace

const char* heed_forward(const heed::Attention* attention, const heed::Forward* results, int threads) {
  return guarded([&] { return heed::forward(*attention, *results, within_reason(threads)); });
}
const char* heed_backward(const heed::Attention* attention, const heed::Backward* pass, int threads) {
  return guarded([&] { return heed::backward(*attention, *pass, within_reason(threads)); });
}
const char* heed_bias_gradient(const heed::Attention* attention, const heed::Backward* pass, void* gradient,
                               int threads) {
  return guarded([&] { return heed::bias_gradient(*attention, *pass, gradient, within_reason(threads)); });
}
const char* heed_additive_forward(const heed::Additive* additive, const heed::Forward* results, int threads) {
  return guarded([&] { return heed::forward(*additive, *results, within_reason(threads)); });
}
const char* heed_additive_backward(const heed::Additive* additive, const heed::AdditiveBackward* pass, int threads) {
  return guarded([&] { return heed::backward(*additive, *pass, within_reason(threads)); });
}
const char* heed_instruction_set() { return heed::instruction_set(); }
int heed_use_instruction_set(const char* name) { return heed::use_instruction_set(name); }
int heed_available_threads() { return heed::available_threads(); }
