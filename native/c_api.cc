#include "c_api.h"

#include <new>

#include "instruction_sets.h"
#include "thread_pool.h"

namespace {
// No exception may leave the library.
template <class Function>
const char* guarded(const Function& function) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return "out of memory";
  } catch (...) {
    return "threads could not be started";
  }
}
}  // namespace

const char* heed_forward(const heed::Attention* attention, const heed::Forward* results, int threads) {
  return guarded([&] { return heed::forward(*attention, *results, threads); });
}
const char* heed_backward(const heed::Attention* attention, const heed::Backward* pass, int threads) {
  return guarded([&] { return heed::backward(*attention, *pass, threads); });
}
const char* heed_additive_forward(const heed::Additive* additive, const heed::AdditiveForward* results, int threads) {
  return guarded([&] { return heed::forward(*additive, *results, threads); });
}
const char* heed_additive_backward(const heed::Additive* additive, const heed::AdditiveBackward* pass, int threads) {
  return guarded([&] { return heed::backward(*additive, *pass, threads); });
}
const char* heed_instruction_set() { return heed::instruction_set(); }
int heed_use_instruction_set(const char* name) { return heed::use_instruction_set(name); }
int heed_available_threads() { return heed::available_threads(); }
