// Chooses the instruction set of the kernels: see heed.h.
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "kernels/registry.h"

namespace heed {
namespace {

// Best first.
const InstructionSet* const kAll[] = {
#define HEED_INSTRUCTION_SET(name) &name::kInstructionSet,
#include "instruction_sets.inc"
#undef HEED_INSTRUCTION_SET
};
constexpr int kCount = sizeof(kAll) / sizeof(*kAll);

const InstructionSet* find(const char* name) {
  for (const InstructionSet* set : kAll)
    if (set->supported() && (!name || std::strcmp(set->name, name) == 0)) return set;
  return nullptr;
}

std::atomic<const InstructionSet*> chosen{nullptr};

const InstructionSet* initial() {
  const InstructionSet* set = find(std::getenv("HEED_INSTRUCTION_SET"));
  return set ? set : find(nullptr);
}

// Chosen by the first caller: all choose the same. Not a static of this function: its lock would stay closed in a child
// that is forked while another thread holds it.
const InstructionSet& current_set() {
  const InstructionSet* set = chosen.load();
  if (!set) chosen.store(set = initial());
  return *set;
}

}  // namespace

const Kernels& kernels_for(const HeedAttention& attention) { return current_set().kernels(attention); }
const RowKernels& kernels_for(const HeedRows& rows) { return current_set().row_kernels(rows); }

const DecoderKernels& decoder_kernels() { return current_set().decoder_kernels(); }

}  // namespace heed

const char* heed_instruction_set_name(int index) {
  return index >= 0 && index < heed::kCount ? heed::kAll[index]->name : nullptr;
}

const char* heed_instruction_set() { return heed::current_set().name; }

HeedBlockSizes heed_block_sizes(void) { return heed::current_set().block_sizes; }

int heed_use_instruction_set(const char* name) {
  const heed::InstructionSet* set = name ? heed::find(name) : heed::initial();
  if (set) heed::chosen.store(set);
  return set != nullptr;
}
