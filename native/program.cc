#include "program.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstring>

#include "kernels/registry.h"
#include "refusal.h"

namespace heed {
namespace {

constexpr const char* kTypeNames[] = {"float", "int", "bool"};

// Of the operands of an instruction, in order.
struct Operands {
  int32_t count, of[3];
};

Operands operands_of(const HeedAttention& a, const HeedInstruction& x) {
  if (x.opcode == HEED_OP_LOAD) return {1, {x.a, 0, 0}};
  const OperationNeeds* needs = kernels_for(a).operation_needs(x.opcode);
  return {needs ? needs->operands : 0, {x.a, x.b, x.c}};
}

// The instructions that some values need, these included; those with a number in `kept`, unless it is empty, need none.
std::vector<bool> needed_by(const HeedAttention& a, const HeedInstructions& list, const std::vector<int32_t>& roots,
                            const std::vector<int32_t>& kept = {}) {
  std::vector<bool> needed(static_cast<size_t>(list.count));
  for (int32_t root : roots) needed[static_cast<size_t>(root)] = true;
  for (int32_t i = list.count - 1; i >= 0; --i) {
    if (!needed[static_cast<size_t>(i)] || (!kept.empty() && kept[static_cast<size_t>(i)] >= 0)) continue;
    const Operands operands = operands_of(a, list.data[i]);
    for (int k = 0; k < operands.count; ++k) needed[static_cast<size_t>(operands.of[k])] = true;
  }
  return needed;
}

bool is_leaf(int32_t opcode) { return opcode < HEED_OP_NEG && opcode != HEED_OP_LOAD; }

// Checks the instructions of one list; `what` names it.
class ListCheck {
 public:
  ListCheck(const HeedAttention& a, const HeedInstructions& list, const char* what, bool derivative)
      : a_(a), program_(*a.program), list_(list), what_(what), derivative_(derivative) {
    require(list.count >= 0 && list.count <= HEED_MAX_INSTRUCTIONS,
            "the %s of a program may have at most %d instructions. Received: %d", what, HEED_MAX_INSTRUCTIONS,
            list.count);
    require(list.data || list.count == 0, "the instructions of the %s of a program are missing", what);
    for (at_ = 0; at_ < list.count; ++at_) check(list.data[at_]);
  }

  // Value `index` must exist and have this type; `name` says what it is for.
  void result(int32_t index, int32_t type, const char* name) const {
    require(index >= 0 && index < list_.count, "`%s` of a program must be a value of its %s. Received: %d of %d", name,
            what_, index, list_.count);
    require(list_.data[index].type == type, "`%s` of a program must be a %s. Received: a %s", name, kTypeNames[type],
            kTypeNames[list_.data[index].type]);
  }

  // Whether value `index` is computed of the score.
  bool reads_score(int32_t index) const {
    const std::vector<bool> needed = needed_by(a_, list_, {index});
    for (int32_t i = 0; i < list_.count; ++i)
      if (needed[static_cast<size_t>(i)] && list_.data[i].opcode == HEED_OP_SCORE) return true;
    return false;
  }

 private:
  void must(bool holds, const char* problem) const {
    require(holds, "instruction %d of the %s of a program %s", at_, what_, problem);
  }
  int32_t type_of(int32_t operand) const {
    must(operand >= 0 && operand < at_, "must have earlier values as operands");
    return list_.data[operand].type;
  }

  void check(const HeedInstruction& x) const {
    must(x.type <= HEED_BOOL, "has an unknown type");
    switch (x.opcode) {
      case HEED_OP_CONSTANT: return check_constant(x);
      case HEED_OP_UPSTREAM: must(derivative_, "is of derivatives only"); [[fallthrough]];
      case HEED_OP_SCORE: return must(x.type == HEED_FLOAT, "must be a float");
      case HEED_OP_BATCH:
      case HEED_OP_HEAD:
      case HEED_OP_QUERY:
      case HEED_OP_KEY: return must(x.type == HEED_INT, "must be an int");
      case HEED_OP_LOAD: return check_load(x);
      default: return check_operation(x);
    }
  }

  void check_constant(const HeedInstruction& x) const {
    const double c = x.constant;
    must(x.type != HEED_INT || (c >= INT32_MIN && c <= INT32_MAX && c == std::floor(c)), "must hold an int32");
    must(x.type != HEED_BOOL || c == 0 || c == 1, "must hold 0 or 1");
  }

  void check_load(const HeedInstruction& x) const {
    must(x.capture < program_.capture_count, "reads a captured array that there is not");
    const HeedCapture& capture = program_.captures[x.capture];
    must(type_of(x.a) == HEED_INT, "must have an int as index");
    must(x.type == capture.type, "must have the type of its captured array");
    const bool empty = a_.batch == 0 || a_.heads == 0 || a_.query_length == 0 || a_.key_length == 0;
    must(empty || capture.size > 0, "reads an empty captured array");
  }

  void check_operation(const HeedInstruction& x) const {
    const OperationNeeds* needs = kernels_for(a_).operation_needs(x.opcode);
    must(needs, "has an unknown operation");
    const int32_t operands[3] = {x.a, x.b, x.c};
    const int last = needs->operands - 1;
    for (int k = 0; k <= last; ++k) type_of(operands[k]);
    const int32_t type = type_of(operands[last]);
    const bool where = x.opcode == HEED_OP_WHERE;
    must(!where || type_of(x.a) == HEED_BOOL, "must have a bool as condition");
    for (int k = where ? 1 : 0; k < last; ++k) must(type_of(operands[k]) == type, "must have operands of one type");
    must(needs->inputs >> type & 1, "has operands of a type that its operation does not take");
    const int32_t results[] = {type, HEED_FLOAT, HEED_INT, HEED_BOOL};
    must(x.type == results[needs->result], "has a type that its operation does not give");
  }

  const HeedAttention& a_;
  const HeedProgram& program_;
  const HeedInstructions& list_;
  const char* what_;
  bool derivative_;
  int32_t at_ = 0;
};

}  // namespace

void check_program(const HeedAttention& a) {
  const HeedProgram& p = *a.program;
  require(a.score == HEED_DOT_PRODUCT, "additive attention has no program");
  require(p.capture_count >= 0 && p.capture_count <= HEED_MAX_CAPTURES,
          "a program may have at most %d captured arrays. Received: %d", HEED_MAX_CAPTURES, p.capture_count);
  require(p.captures || p.capture_count == 0, "the captured arrays of a program are missing");
  for (int32_t c = 0; c < p.capture_count; ++c) {
    const HeedCapture& capture = p.captures[c];
    require(capture.type >= HEED_FLOAT && capture.type <= HEED_BOOL, "captured array %d has an unknown type", c);
    require(capture.size >= 0 && capture.size <= INT32_MAX,
            "captured array %d must have a size in [0, 2^31). Received: %" PRId64, c, capture.size);
    require(capture.data || capture.size == 0, "the data of captured array %d are missing", c);
  }
  const ListCheck forward(a, p.forward, "forward pass", false);
  require(p.score >= -1 && p.keep >= -1, "`score` and `keep` of a program must be values of it, or -1");
  if (p.score >= 0) forward.result(p.score, HEED_FLOAT, "score");
  if (p.keep >= 0) {
    forward.result(p.keep, HEED_BOOL, "keep");
    require(!forward.reads_score(p.keep), "`keep` of a program must not depend on the score");
  }
  const ListCheck derivative(a, p.derivative, "derivative", true);
  require(p.score_gradient >= -1, "`score_gradient` of a program must be a value of its derivative, or -1");
  if (p.score_gradient >= 0) derivative.result(p.score_gradient, HEED_FLOAT, "score_gradient");
  require(p.scatter_count >= 0 && p.scatter_count <= HEED_MAX_SCATTERS,
          "a program may have at most %d scatters. Received: %d", HEED_MAX_SCATTERS, p.scatter_count);
  require(p.scatters || p.scatter_count == 0, "the scatters of a program are missing");
  for (int32_t s = 0; s < p.scatter_count; ++s) {
    const HeedScatter& scatter = p.scatters[s];
    require(scatter.capture >= 0 && scatter.capture < p.capture_count && p.captures[scatter.capture].type == HEED_FLOAT,
            "scatter %d of a program must have a captured array of floats", s);
    derivative.result(scatter.index, HEED_INT, "index");
    derivative.result(scatter.gradient, HEED_FLOAT, "gradient");
  }
}

Planned::Planned(const HeedAttention& attention) : attention_(attention) {
  const HeedProgram& program = *attention.program;
  plan(program);
  attention_.program = reinterpret_cast<const HeedProgram*>(&plan_);
  std::copy_n(attention.rules, attention.rule_count, rules_);
  attention_.rules = rules_;
  if (program.keep >= 0) add_rule(kProgramRule);
  // Only a constant lets bounds tell that a score hides its key.
  const auto hides = [](const Step& step) {
    return step.opcode == HEED_OP_CONSTANT && step.type == HEED_FLOAT && step.constant <= HEED_MASK_VALUE;
  };
  if (program.score >= 0 && std::any_of(plan_.score.steps, plan_.score.steps + plan_.score.count, hides))
    add_rule(kScoreRule);
}

void Planned::add_rule(int32_t kind) {
  HeedMaskRule& rule = rules_[attention_.rule_count++] = {};
  rule.kind = kind;
  rule.right = attention_.heads;
  rule.dense.data = &plan_;
}

void Planned::plan(const HeedProgram& p) {
  Plan& plan = plan_;
  plan.captures = p.captures;
  plan.capture_count = p.capture_count;
  plan.is_double = attention_.dtype == HEED_FLOAT64;
  plan.modifies = p.score >= 0;
  plan.score_step = plan.keep_step = plan.gradient_step = plan.kept_score = -1;
  std::vector<int32_t> step_of, score_step_of;
  if (p.score >= 0) {
    plan.score = code(p.forward, {p.score}, {}, {}, &score_step_of);
    plan.score_step = score_step_of[static_cast<size_t>(p.score)];
    summarise(plan.score);
  }
  if (p.keep >= 0) {
    plan.keep = code(p.forward, {p.keep}, {}, {}, &step_of);
    plan.keep_step = step_of[static_cast<size_t>(p.keep)];
    summarise(plan.keep);
  }
  if (p.score < 0) return;
  std::vector<int32_t> results, indices;
  if (p.score_gradient >= 0) results.push_back(p.score_gradient);
  for (int32_t s = 0; s < p.scatter_count; ++s) {
    results.push_back(p.scatters[s].gradient);
    indices.push_back(p.scatters[s].index);
  }
  plan.derivative = code(p.derivative, results, indices, keep(p, score_step_of, results, indices), &step_of);
  if (p.score_gradient >= 0) plan.gradient_step = step_of[static_cast<size_t>(p.score_gradient)];
  summarise(plan.derivative);
  plan.scatter_count = p.scatter_count;
  for (int32_t s = 0; s < p.scatter_count; ++s)
    plan.scatters[s] = {p.scatters[s].capture, step_of[static_cast<size_t>(p.scatters[s].index)],
                        step_of[static_cast<size_t>(p.scatters[s].gradient)]};
}

// Decides which values of the score's code the backward pass keeps, so that the derivative need not compute them again.
// Returns their numbers by instruction of the derivative, -1 elsewhere.
std::vector<int32_t> Planned::keep(const HeedProgram& p, const std::vector<int32_t>& score_step_of,
                                   const std::vector<int32_t>& results, const std::vector<int32_t>& indices) {
  const auto at = [](int32_t i) { return static_cast<size_t>(i); };
  // The instruction of the forward pass with the same value, or -1; of several the first.
  std::vector<int32_t> first(at(p.forward.count)), same(at(p.derivative.count));
  const auto find = [&](const HeedInstruction& x, int32_t count, const std::vector<int32_t>& numbers) {
    const Operands operands = operands_of(attention_, x);
    for (int32_t i = 0; i < count; ++i) {
      const HeedInstruction& y = p.forward.data[i];
      bool equal = x.opcode == y.opcode && x.type == y.type;
      if (x.opcode == HEED_OP_LOAD) equal &= x.capture == y.capture;
      if (x.opcode == HEED_OP_CONSTANT) equal &= std::memcmp(&x.constant, &y.constant, sizeof x.constant) == 0;
      const Operands others = operands_of(attention_, y);
      for (int k = 0; equal && k < operands.count; ++k) equal = numbers[at(operands.of[k])] == first[at(others.of[k])];
      if (equal) return i;
    }
    return int32_t{-1};
  };
  for (int32_t i = 0; i < p.forward.count; ++i) {
    const int32_t earlier = find(p.forward.data[i], i, first);
    first[at(i)] = earlier < 0 ? i : earlier;
  }
  for (int32_t i = 0; i < p.derivative.count; ++i) same[at(i)] = find(p.derivative.data[i], p.forward.count, same);

  // What is known of the indices of scatters would be lost.
  const std::vector<bool> of_index = needed_by(attention_, p.derivative, indices);
  std::vector<int32_t> kept(at(p.derivative.count), -1);
  std::vector<bool> needed(at(p.derivative.count));
  for (int32_t root : results) needed[at(root)] = true;
  for (int32_t root : indices) needed[at(root)] = true;
  int others = 0;
  for (int32_t i = p.derivative.count - 1; i >= 0; --i) {
    if (!needed[at(i)]) continue;
    const HeedInstruction& x = p.derivative.data[i];
    if (x.opcode == HEED_OP_SCORE) {
      if (plan_.kept_score < 0) plan_.kept_score = plan_.kept_count++;
      kept[at(i)] = plan_.kept_score;
      continue;
    }
    const int32_t step = same[at(i)] < 0 ? -1 : score_step_of[at(same[at(i)])];
    if (step >= 0 && !of_index[at(i)] && x.type == HEED_FLOAT && plan_.score.steps[step].dependence == kOnPair) {
      int32_t& number = steps_.front()[at(step)].kept;
      if (number < 0 && others < kMostKept) number = plan_.kept_count++, ++others;
      kept[at(i)] = number;
      if (number >= 0) continue;
    }
    const Operands operands = operands_of(attention_, x);
    for (int k = 0; k < operands.count; ++k) needed[at(operands.of[k])] = true;
  }
  return kept;
}

// Of the arrays that bounds of a code's values ask for.
void Planned::summarise(const Code& code) {
  for (int32_t i = 0; i < code.count; ++i) {
    const Step& step = code.steps[i];
    const bool needed = step.opcode == HEED_OP_LOAD && step.type != HEED_FLOAT;
    if (needed && plan_.summaries[step.capture].levels == 0)
      plan_.summaries[step.capture] = summary(plan_.captures[step.capture]);
  }
}

// The instructions that `results` and `indices` of scatters need, as steps; `step_of` gets their numbers. Those with a
// number in `kept`, unless it is empty, are read and not computed.
Code Planned::code(const HeedInstructions& list, const std::vector<int32_t>& results,
                   const std::vector<int32_t>& indices, const std::vector<int32_t>& kept,
                   std::vector<int32_t>* step_of) {
  std::vector<int32_t> roots = results;
  roots.insert(roots.end(), indices.begin(), indices.end());
  const auto at = [](int32_t i) { return static_cast<size_t>(i); };
  const std::vector<bool> needed = needed_by(attention_, list, roots, kept);
  // How many read a value; of results and indices there are more.
  std::vector<int32_t> readers(at(list.count));
  for (int32_t root : roots) readers[at(root)] = 2;
  for (int32_t i = 0; i < list.count; ++i) {
    const Operands operands = operands_of(attention_, list.data[i]);
    for (int k = 0; needed[at(i)] && k < operands.count; ++k) ++readers[at(operands.of[k])];
  }
  Code code = {};
  std::vector<Step>& steps = steps_.emplace_back();
  step_of->assign(at(list.count), -1);
  // The step of a value of pairs that an operation gives to one reader alone, or null.
  const auto inner = [&](int32_t opcode, int32_t operand) -> Step* {
    if (list.data[operand].opcode != opcode || readers[at(operand)] != 1) return nullptr;
    Step& step = steps[at((*step_of)[at(operand)])];
    return step.opcode == opcode && step.dependence == kOnPair ? &step : nullptr;
  };
  // Makes a step that of its only reader as well, and returns whether it could.
  const auto join = [&](const HeedInstruction& x) {
    if (x.type != HEED_FLOAT) return false;
    if (x.opcode == HEED_OP_ABS) {
      Step* difference = inner(HEED_OP_SUB, x.a);
      if (difference) difference->opcode = kAbsDifference;
      return difference != nullptr;
    }
    if (x.opcode != HEED_OP_ADD && x.opcode != HEED_OP_SUB) return false;
    const bool is_score = list.data[x.a].opcode == HEED_OP_SCORE;
    Step* product = is_score ? inner(HEED_OP_MUL, x.b) : nullptr;
    const int32_t score = (*step_of)[at(x.a)];
    if (!product || &steps[at(score)] > product) return false;
    product->opcode = x.opcode == HEED_OP_ADD ? kScoreAndProduct : kScoreLessProduct;
    product->operand_count = 3;
    product->operands[2] = score;
    return true;
  };
  for (int32_t i = 0; i < list.count; ++i) {
    if (!needed[at(i)]) continue;
    HeedInstruction x = list.data[i];
    const int32_t number = kept.empty() ? -1 : kept[at(i)];
    if (number >= 0) x.opcode = HEED_OP_SCORE;
    if (join(x)) {
      int32_t& step = (*step_of)[at(x.opcode == HEED_OP_ABS ? x.a : x.b)];
      (*step_of)[at(i)] = step;
      step = -1;
      continue;
    }
    Step step = {x.opcode, x.type, x.type, x.capture, x.constant, 0, {}, kOnNothing, 0, -1, number};
    int dependence = x.opcode == HEED_OP_QUERY                                   ? kOnQuery
                     : x.opcode == HEED_OP_KEY                                   ? kOnKey
                     : x.opcode == HEED_OP_SCORE || x.opcode == HEED_OP_UPSTREAM ? kOnPair
                                                                                 : kOnNothing;
    const Operands operands = operands_of(attention_, x);
    step.operand_count = operands.count;
    for (int k = 0; k < operands.count; ++k) {
      step.operands[k] = (*step_of)[at(operands.of[k])];
      dependence |= steps[at(step.operands[k])].dependence;
      step.input_type = list.data[operands.of[k]].type;
    }
    step.dependence = static_cast<Dependence>(dependence);
    code.by_head |= x.opcode == HEED_OP_HEAD;
    code.follows_lines |= x.opcode == HEED_OP_LOAD && x.type == HEED_FLOAT && dependence == kOnPair;
    (*step_of)[at(i)] = static_cast<int32_t>(steps.size());
    steps.push_back(step);
  }
  code.count = static_cast<int32_t>(steps.size());

  // Values of queries or keys alone that pairs read, and the last reader of values of pairs.
  std::vector<bool> spread(at(code.count));
  std::vector<int32_t> last_reader(at(code.count), -1);
  for (int32_t i = 0; i < code.count; ++i)
    for (int k = 0; k < steps[at(i)].operand_count; ++k) {
      const int32_t operand = steps[at(i)].operands[k];
      last_reader[at(operand)] = i;
      if (steps[at(i)].dependence == kOnPair) spread[at(operand)] = true;
    }
  for (int32_t root : roots) {
    spread[at((*step_of)[at(root)])] = true;
    last_reader[at((*step_of)[at(root)])] = code.count;
  }
  for (int32_t index : indices) code.follows_lines |= steps[at((*step_of)[at(index)])].dependence == kOnPair;
  std::vector<int32_t>& result_steps = results_.emplace_back();
  for (int32_t result : results) result_steps.push_back((*step_of)[at(result)]);
  code.results = result_steps.data();
  code.result_count = static_cast<int32_t>(result_steps.size());
  int32_t spreads[4] = {};
  std::vector<int32_t> unused;  // slots of pairs
  for (int32_t i = 0; i < code.count; ++i) {
    Step& step = steps[at(i)];
    const bool of_one = step.dependence == kOnQuery || step.dependence == kOnKey;
    if (of_one && spread[at(i)]) step.spread = spreads[step.dependence]++;
    if (step.opcode == HEED_OP_SCORE || step.opcode == HEED_OP_UPSTREAM) continue;  // these have their own
    if (step.dependence != kOnPair || unused.empty()) {
      step.slot = code.slots[step.dependence]++;
    } else {
      step.slot = unused.back();
      unused.pop_back();
    }
    if (step.dependence != kOnPair) continue;
    // A result never takes the place of an operand: their numbers may have different sizes.
    for (int k = 0; k < step.operand_count; ++k) {
      Step& operand = steps[at(step.operands[k])];
      const bool own = operand.dependence == kOnPair && !is_leaf(operand.opcode);
      const bool repeated = std::count(step.operands, step.operands + k, step.operands[k]) > 0;
      if (own && !repeated && last_reader[at(step.operands[k])] == i) unused.push_back(operand.slot);
    }
  }
  code.spread_slots = std::max(spreads[kOnQuery], spreads[kOnKey]);
  code.steps = steps.data();
  return code;
}

Summary Planned::summary(const HeedCapture& capture) {
  Summary made = {};
  int64_t below = capture.size;
  while (below > kSummaryFactor || made.levels == 0) {
    const int64_t size = (below + kSummaryFactor - 1) / kSummaryFactor;
    std::vector<int32_t>& least = levels_.emplace_back(static_cast<size_t>(size), INT32_MAX);
    int32_t* const least_data = least.data();
    int32_t* const most_data = levels_.emplace_back(static_cast<size_t>(size), INT32_MIN).data();
    for (int64_t i = 0; i < below; ++i) {
      int32_t low = 0, high = 0;
      if (made.levels > 0)
        low = made.least[made.levels - 1][i], high = made.most[made.levels - 1][i];
      else if (capture.type == HEED_INT)
        low = high = static_cast<const int32_t*>(capture.data)[i];
      else
        low = high = static_cast<const uint8_t*>(capture.data)[i] != 0;
      int32_t &of_least = least_data[i / kSummaryFactor], &of_most = most_data[i / kSummaryFactor];
      of_least = std::min(of_least, low), of_most = std::max(of_most, high);
    }
    made.least[made.levels] = least_data, made.most[made.levels] = most_data;
    made.size[made.levels++] = below = size;
  }
  return made;
}

}  // namespace heed
