#include "instruction_sets.h"

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "kernels/registry.h"

namespace heed {
namespace {

// Best first.
const InstructionSet* const kAll[] = {
#if defined(__x86_64__)
    &kAmx, &kAvx512, &kAvx2,
#endif
    &kBaseline};

const InstructionSet* find(const char* name) {
  for (const InstructionSet* set : kAll)
    if (set->supported() && (!name || std::strcmp(set->name, name) == 0)) return set;
  return nullptr;
}

std::atomic<const InstructionSet*>& chosen() {
  static std::atomic<const InstructionSet*> set = [] {
    const InstructionSet* wish = find(std::getenv("HEED_INSTRUCTION_SET"));
    return wish ? wish : find(nullptr);
  }();
  return set;
}

}  // namespace

const Kernels& kernels_for(const Attention& attention) { return chosen().load()->kernels(attention.number); }

const char* instruction_set() { return chosen().load()->name; }

bool use_instruction_set(const char* name) {
  const InstructionSet* set = find(name);
  if (set) chosen().store(set);
  return set != nullptr;
}

}  // namespace heed
