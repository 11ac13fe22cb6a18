// Checks a program of a call and prepares it for the kernels.
#pragma once

#include <vector>

#include "kernels/plan.h"

namespace heed {

// Throws `Refused`. The program reads no captured array beyond its end, whatever its operands are.
void check_program(const HeedAttention& attention);

// An attention with a program as the kernels take it: the program is a plan, and what it keeps, and the scores that
// hide, are further mask rules. The attention must have passed the check, and outlive this.
class Planned {
 public:
  explicit Planned(const HeedAttention& attention);
  Planned(const Planned&) = delete;
  Planned& operator=(const Planned&) = delete;

  const HeedAttention& attention() const { return attention_; }

 private:
  void plan(const HeedProgram& program);
  void add_rule(int32_t kind);
  Code code(const HeedInstructions& instructions, const std::vector<int32_t>& results,
            const std::vector<int32_t>& indices, const std::vector<int32_t>& kept, std::vector<int32_t>* step_of);
  std::vector<int32_t> keep(const HeedProgram& program, const std::vector<int32_t>& score_step_of,
                            const std::vector<int32_t>& results, const std::vector<int32_t>& indices);
  void summarise(const Code& code);
  Summary summary(const HeedCapture& capture);

  HeedAttention attention_;
  HeedMaskRule rules_[kMostRules];
  Plan plan_ = {};
  std::vector<std::vector<Step>> steps_;
  std::vector<std::vector<int32_t>> results_;
  std::vector<std::vector<int32_t>> levels_;  // of summaries
};

}  // namespace heed
