// The ops of TensorFlow over the core: they read tensors, call it, and pass on what it says. No arithmetic.
#include "ops.h"
#include "tensorflow_c.h"

namespace heed::tf {
namespace {

// Runs when the library is loaded: TensorFlow looks for ops that appeared meanwhile.
__attribute__((constructor)) void register_all() {
  if (!bind()) return;
  register_attention();
  register_additive();
}

}  // namespace
}  // namespace heed::tf
